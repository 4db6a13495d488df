// Functions whose names are as long as those of C++ are.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

template <class A, class B>
using Table = std::map<A, std::vector<std::pair<A, B>>>;

static volatile unsigned long sum;

template <class A, class B>
__attribute__((noinline)) void leaf(Table<A, B> const &, std::function<B(A const &)> const &) {
    for (int i = 0; i < 1000; i++)
        if (i % 7) sum = sum + i;
}

template <class A, class B>
__attribute__((noinline)) void root(Table<A, B> const &table, std::function<B(A const &)> const &wanted) {
    for (int i = 0; i < 100000; i++) leaf<A, B>(table, wanted);
}

int main() { root<std::string, double>({}, {}); }
