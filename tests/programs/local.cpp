static volatile int seen;
typedef int (*Call)(int);
__attribute__((noinline)) static int each(Call call, int n) { int s = 0; for (int i = 0; i < n; ++i) s += call(i); return s; }
template <class F> __attribute__((noinline)) int apply(F f, int n) { int s = 0; for (int i = 0; i < n; ++i) s += f(i); return s; }
template <int N> struct Fold { static int go(int x) { return x * N + Fold<N - 1>::go(x + N); } };
template <> struct Fold<0> { static int go(int x) { return x ^ 5; } };
static inline int passes(int n) {
    return each([](int x) { int y = x + seen; for (int i = 0; i < x; ++i) y ^= Fold<3>::go(i); return y; }, n);
}
static inline int generic(int n) {
    auto outer = [&](auto x) {
        struct Inner {
            int by;
            __attribute__((noinline)) static int fixed(int q) { return Fold<2>::go(q * seen); }
            __attribute__((noinline)) int scaled(int q) const { return q / 3 * by + seen; }
        };
        auto deep = [&](int z) __attribute__((noinline)) { return Inner{z}.scaled(z) * 3 + n; };
        return Inner::fixed(x) + deep(x) + deep(x + 1);
    };
    return apply(outer, n) + outer(n * 2L);
}
struct Holder {
    Call call = [](int x) { return Fold<4>::go(x) + seen; };
    static inline auto shared = [](int x) __attribute__((noinline)) { return x ^ seen; };
    struct Nested { __attribute__((noinline)) int eval(int x) { return x / 3 + seen; } };
};
namespace { struct Hidden { __attribute__((noinline)) static int get(int x) { return passes(x) + generic(x + 1); } }; }
extern "C" int start(int n, char **) {
    Holder holder;
    Holder::Nested nested;
    return passes(n) + passes(n + 3) + generic(n) + holder.call(n) + Holder::shared(n) + nested.eval(n) + Hidden::get(n);
}
