program descends
    implicit none
    integer :: level
    real(8) :: left(30, 30), right(30, 30), total = 0
    call random_number(left)
    call random_number(right)
    do
        do level = 1, 12
            total = mod(total + descend(level), 1d3)
        end do
    end do
contains
    recursive real(8) function descend(level) result(found)
        integer, intent(in) :: level
        character(40) :: text
        if (level > 0) then
            write (text, '(i8, f12.4)') level, left(level, level)
            found = descend(level - 1) + len_trim(text)
        else
            found = sum(matmul(left, right))
        end if
    end function
end program
