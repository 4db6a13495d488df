trait Shape {
    fn area(&self, n: u64) -> u64;
}
struct Square(u64);
struct Disc(u64);
impl Shape for Square {
    fn area(&self, n: u64) -> u64 {
        self.0 * self.0 + n
    }
}
impl Shape for Disc {
    fn area(&self, n: u64) -> u64 {
        (3 * self.0 * self.0) ^ n
    }
}

#[inline(never)]
fn mix(total: u64, n: u64) -> u64 {
    if n % 8 != 0 {
        total.wrapping_add(n) ^ (n >> 3)
    } else {
        total.wrapping_mul(33).wrapping_add(n)
    }
}

#[inline(never)]
fn sum(shapes: &[Box<dyn Shape>], rounds: u64) -> u64 {
    let mut total = 0;
    for i in 0..rounds {
        total = mix(total, i);
        total = total.wrapping_add(shapes[i as usize % shapes.len()].area(i));
    }
    total
}

fn main() {
    let mut shapes: Vec<Box<dyn Shape>> = vec![Box::new(Disc(2))];
    for i in 1..8 {
        shapes.push(Box::new(Square(i)));
    }
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut total = 0u64;
    for i in 0..rounds {
        total = total.wrapping_add(sum(&shapes, 100_000 + i));
    }
    println!("{total}");
}
