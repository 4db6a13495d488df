use std::collections::BTreeMap;
trait Eval { fn eval(&self, x: u64) -> u64; }
struct Lit(u64); struct Bin(Box<dyn Eval>, Box<dyn Eval>);
impl Eval for Lit { fn eval(&self, x: u64) -> u64 { self.0 ^ x } }
impl Eval for Bin { fn eval(&self, x: u64) -> u64 { fn mix(a: u64) -> u64 { a.rotate_left(7) } let f = |y: u64| mix(y).wrapping_mul(3); f(self.0.eval(x)) + f(self.1.eval(x + 1)) & 0xffff } }
#[inline(never)] fn apply<F: Fn(u64) -> u64>(f: F, n: u64) -> u64 { (0..n).map(|i| f(i)).filter(|v| v % 3 != 1).sum() }
fn main() {
    let n = std::env::args().count() as u64;
    let tree = Bin(Box::new(Lit(3)), Box::new(Bin(Box::new(Lit(n)), Box::new(Lit(8)))));
    let mut m = BTreeMap::new();
    for i in 0..50u64 { m.insert(i * 7919 % 101, tree.eval(i)); }
    let out = apply(|x| { let deep = |y: u64| y + n; deep(x) * deep(x + 1) }, 100) + m.values().copied().fold(0, |a, b| a ^ b);
    println!("{}", out);
}
