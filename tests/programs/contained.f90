module shapes
  implicit none
  type :: shape_t
    real :: side = 1.0
  contains
    procedure :: area => shape_area
  end type
contains
  real function shape_area(this)
    class(shape_t), intent(in) :: this
    shape_area = helper(this%side) + this%side
  contains
    real function helper(x)
      real, intent(in) :: x
      integer :: i
      helper = 0
      do i = 1, 20
        helper = helper + sin(x * i)
      end do
    end function
  end function
  subroutine sweep(v, n)
    integer, intent(in) :: n
    real, intent(inout) :: v(n)
    integer :: i
    do i = 2, n
      call bump(v(i))
      v(i) = v(i) + v(i - 1) * 0.5
    end do
  contains
    subroutine bump(x)
      real, intent(inout) :: x
      x = x * x + real(n)
    end subroutine
  end subroutine
end module
program main
  use shapes
  implicit none
  type(shape_t) :: s
  real :: v(100)
  integer :: i
  v = [(real(i), i = 1, 100)]
  call sweep(v, 100)
  s%side = v(7)
  print *, s%area(), total(v)
contains
  real function total(a)
    real, intent(in) :: a(:)
    integer :: k
    total = 0
    do k = 1, size(a)
      total = total + a(k) * a(k)
    end do
  end function
end program
