package main

import "os"

type shape interface{ area(n int) int }
type square struct{ side int }
type disc struct{ radius int }

func (s *square) area(n int) int { return s.side*s.side + n }
func (d *disc) area(n int) int   { return 3*d.radius*d.radius - n }

func small(n int) int { return n*3 + 1 }

// More than the compiler inlines where it does not know that it is hot.
func mix(total, n int) int {
	if n%8 != 0 {
		total += small(n)
		total ^= n >> 3
	} else {
		total = total*33 + n
	}
	switch n % 5 {
	case 0:
		total++
	case 1:
		total += 7
	case 2:
		total ^= 9
	case 3:
		total *= 3
	default:
		total += n + len(os.Args)
	}
	if total > 1<<40 {
		total %= 1 << 20
	} else if total < 0 {
		total = small(n) - total>>20
	}
	return total
}

func sum(shapes []shape, rounds int) int {
	total := 0
	for i := 0; i < rounds; i++ {
		total = mix(total, i)
		total += shapes[i%len(shapes)].area(i)
	}
	return total
}

func main() {
	shapes := []shape{&square{3}, &square{5}, &square{7}, &disc{2}, &square{1}, &square{2}, &square{4}, &square{6}}
	total := 0
	for i := 0; i < 400; i++ {
		total += sum(shapes, 100000)
	}
	println(total)
}
