"""How often a path through each schedule's table passes each kind of work: the data of ``schedule_time``.

A line is: the sizes at which the path exists | the counts of

    F first, inner, last   I first, inner, last   W first, inner, last   overlapped sends   blocking sends

and, for dualpipe-v, on a second line, of those inside overlapped pairs: F first, inner, last, B first, inner, last.
Letters:

    p stages   m microbatches   v chunks   L = (m - 1) // p   M = (m - 2) // p   h = m // 2   q = p // 2

p is at least 2. A whole backward counts as one I and one W. The gradient of an overlapped pair follows its activation
on the same link and so counts two overlapped sends; where sends block, the activation is there one send earlier.

The lines come from runs: the longest path of the event loop was traced back for random stage times at many sizes, its
counts fitted by integers, kept if no run at any size tried was shorter, and chosen until the worst run was covered.
That is evidence, not proof: p up to 16 and m up to 20 p were tried, with times far outside the usual.
``python -m tools record paths`` mines them anew and checks both claims.
"""

from collections.abc import Mapping
from types import MappingProxyType

_ONE_F_ONE_B = """
- | 1 p-2 m 1 p-2 m 1 p-2 m 2p-2 m+2p-3
m>=p+1 | m-p+1 2p-4 2 m-p+1 2p-4 2 m-p+1 2p-4 2 4p-4 m+3p-5
- | L+1 m+p-L-M-4 M+2 L+1 m+p-L-M-4 M+2 L+1 m+p-L-M-4 M+2 2m+2p-2M-6 2m+2p-L-M-5
p>=3 m>=p | 1 m+p-4 2 1 m+p-4 2 1 m+p-4 2 2p 2m+2p-5
- | L+1 p-2 1 m p-2 1 m p-2 1 2p-2 2p+L-2
m>=p | m-p+1 p-2 1 m p-2 1 m p-2 1 2p-2 m+p-2
"""

_INTERLEAVED = """
- | p -m+mv-1 m p -m+mv-1 m p -m+mv-1 m -2p+2pv-2 -m+2mv+p-2
- | 1 -m+mv+p-2 m 1 -m+mv+p-2 m 1 -m+mv+p-2 m 2pv-2 -m+2mv+2p-3
- | m-p+1 -m+mv-1 1 m -m+mv+p-2 1 m -m+mv+p-2 1 -p+2pv-2 -m+2mv-1
m>=2p | m-p -m+mv-2 2p m-p -m+mv-2 2p m-p -m+mv-2 2p -2p+2pv -m+2mv+p-4
p<=2 | m mv-m 0 m mv-m 0 m mv-m 0 2pv-4 2mv-m
p>=3 | p mv-4 1 1 mv+p-3 1 1 mv+p-3 1 2p-2 2mv+2p-6
- | 1 -m+mv+p-2 m p -m+mv-1 m p -m+mv-1 m -p+2pv-2 -m+2mv+p-2
"""

_ZERO_BUBBLE_H1 = """
m<=p-1 | 1 p-2 1 m p-2 1 m 0 0 2p-2 2p-2
m<=p-1 m>=2 | 1 p-2 m 0 -m+p m 0 m 0 -m+2p-1 2p-1
m<=p-1 m>=2 | 1 m+p-4 2 1 m+p-4 2 1 0 0 2m+2p-6 2m+2p-5
m<=p-1 | 1 p-2 m 0 0 m 0 0 m p-1 m+p-1
m<=p-1 | 1 p-2 m 1 p-2 m 1 0 0 2p-2 m+2p-3
m<=p-1 m>=2 | 1 m+p-4 2 0 p-2 2 0 m 0 m+2p-5 m+2p-3
m<=p-1 m>=2 | 1 m+p-4 2 0 m-2 2 0 0 m 2m+p-5 2m+p-3
m<=p-1 m>=2 | 1 p-2 2 0 m+p-4 2 0 m 0 2p-3 m+2p-3
m<=p-1 m>=3 | 1 m+p-4 1 0 p 1 0 m 0 -m+2p m+2p-2
m>=p | m-p+1 p-2 1 m p-2 1 m 0 0 2p-2 m+p-2
m>=p | 1 p-2 m 0 0 m 0 0 m p-1 m+p-1
m>=p | 1 p-2 m 1 p-2 m 1 0 m-p 2p-2 m+2p-3
m>=p | m-p+1 2p-4 2 m-p+1 2p-4 2 m-p+1 0 0 4p+2L-2M-6 m+3p-5
p>=3 m>=p | 1 m+p-4 2 0 m-2 2 0 m-p p 3p-5 2m+p-3
m>=p+1 | m-p+1 2p-4 2 m-p p-2 2 m-p 0 p 3p-3 m+2p-3
p>=3 m>=p | 1 m-1 1 1 m+p-3 1 1 m-2 0 2p-2 2m+p-2
m>=p+1 | m-p+1 2p-4 2 m-p+1 2p-4 2 m-p+1 0 0 4p-4 m+3p-5
p>=3 m>=p | 1 m+p-4 2 1 m+p-4 2 1 m-p 0 2p 2m+2p-5
p>=3 m>=p | 1 m+p-4 1 0 m 1 0 m 0 p 2m+p-2
m>=p+1 | 2 2p-4 m-p+1 1 p-2 m-p+1 1 0 m-1 3p-3 m+2p-3
m>=p+1 | 2 2p-4 m-p+1 2 2p-4 m-p+1 2 0 m-p-1 4p-4 m+3p-5
"""

_ZBV = """
m<=p | 1 2p-2 1 1 2m+2p-4 1 1 2m-1 0 4p-4 m+4p-5
m<=p m>=4 | 3 m+2p-5 0 2 m+2p-3 0 2 2m-2 0 -2m+4p-2 2m+4p-5
m<=p m>=2 | 1 m+2p-2 0 1 m+2p-2 0 1 2m-1 0 -2m+4p-2 4p-3
m<=p m>=3 | 2m-2h-1 -2m+2p+2h 1 1 2m+2p-4 1 1 2m-1 0 -2m+4p+2h-2 m+4p-4
m=p | 1 2p-2 p p 0 p p 0 p 2p-2 3p-2
m<=p | 1 2p-2 m 1 2p-2 m 1 1 m-1 4p-4 m+4p-5
m<=p-1 m>=2 | 1 2p-2 m 1 -m+2p-1 m 1 m m-1 -2m+4p-2 4p-3
p>=3 m=p | 2p-2q-1 2q p p 0 p p 0 p 2q 3p-1
m<=p m>=3 | 2m-2h-1 -2m+2p+2h 2 2 2m+2p-8 2 2 2m-3 1 -2m+4p+2h-4 2m+4p-7
p>=3 m<=p-1 m>=2 | 2m-2h-1 -2m+2p+2h m m -2m+2p m m 1 m-1 -4m+4p+2h 4p-2h-2
m<=2p-2 m>=p+1 | 2m-2h-1 -m+p+2h m-p+1 m-p+1 -2m+6p-4 m-p+1 m-p+1 2p-1 m-p -4m+6p+2h-2 6p-4
m<=2p-2 m>=p+1 | 2m-2h-1 -2m+2p+2h m m 0 m m 0 m -2m+2p+2h m+2p-1
m<=2p-2 m>=p+1 | 2q+1 3m-p-2q-3 1 1 m+3p-3 1 1 2p-1 0 2m+2p-2q-6 5m-7
m<=2p-2 m>=p+1 | 1 2p-2 m m-p+1 2p-2 m m-p+1 0 m-1 4p-4 m+4p-5
m<=2p-2 m>=p+1 | 2m-2p+1 3p-3 0 m-p+1 3p-2 0 m-p+1 2p 0 2p-4 2m+4p-4
m<=2p-2 m>=p+1 | m-1 -m+2p m m-p p m m-p 2m-2p+1 m-1 -m+3p-1 m+3p-2
m<=2p-2 m>=p+2 | 3 3m-7 0 0 m+p+2 0 0 2m+1 0 2m-p-5 4m+p-3
m<=2p-2 m>=p+1 | 1 3m-2 0 m-p+1 -m+4p-2 0 m-p+1 2p-1 0 2p-2 5p-3
m<=2p-2 m>=5 m>=p+1 | 1 2m-2 1 1 2m+2p-4 1 1 2p-1 0 2m+2p-6 4m-2
m<=2p-2 m>=5 m>=p+1 | 2m-2h-1 -m+p+2h+1 m-p 0 3p m-p 0 2m m-p-1 -2m+3p+2h-1 2m+3p-1
m<=2p-2 m>=p+1 | 2m-2h-1 -2m+2p+2h m m-p+1 2p-2 m m-p+1 0 m-1 -2m+4p+2h-2 m+4p-4
m<=2p-2 m>=p+1 | 1 2p-2 m m-p p m m-p 2m-2p+1 m-1 3p-3 m+3p-3
m<=2p-2 m>=p+1 | 1 2p-2 m m 0 m m 0 m 2p-2 m+2p-2
m<=2p-2 m>=p+3 | 2m-2h-1 2h 1 0 2m+2p-5 1 0 2p+3 0 -2m+4p+2h-3 4m+2p-6
m<=2p-2 m>=p+1 | 1 m+p-2 m-p+1 m-p+1 -2m+6p-4 m-p+1 m-p+1 2p-1 m-p -2m+6p-4 6p-5
p>=4 m<=2p-2 m>=p+1 | 1 2m-2 1 0 m+3p-3 1 0 3m-2p+1 0 m+3p-6 m+5p-5
m<=2p-2 m>=5 m>=p+1 | 2m-2h-1 2h 1 0 m+3p-4 1 0 3m-2p+2 0 -3m+5p+2h-2 3m+3p-5
m<=2p-2 m>=p+1 | 2m-2h-1 2h 1 m-p+1 4p-4 1 m-p+1 2p-1 0 -2m+4p+2h-2 6p-4
m<=2p-2 m>=p+3 | 1 m+p-1 m-p 0 4p-2 m-p 0 2p+2 m-p-1 4p-5 2m+4p-4
m<=2p-2 m>=p+3 | 3 3m-7 0 0 m+2p-1 0 0 2p+4 0 2m-9 4m+2p-5
m<=2p-2 m>=p+2 | 2m-2h-1 2h 1 1 2m+2p-4 1 1 2p-1 0 2p+2h-4 2m+4p-5
m<=2p-2 m>=p+3 | 1 3m-3 0 0 m+2p-1 0 0 2p+2 0 2m-5 2m+3p-4
p>=4 m=2p-2 | 2p-3 3p-2 0 0 4p-3 0 0 4p-6 0 3p-4 7p-5
p>=4 m<=2p-2 m>=p+1 | 1 2m-2 1 0 m+2p-1 1 0 3m-p-1 0 3p-3 3m+2p-3
m<=2p-2 m>=p+2 | 1 3m-3 0 0 m+p+1 0 0 2m 0 2m-p-3 2m+2p-2
m<=2p-2 m>=6 m>=p+2 | 2m-2p-1 -m+4p+1 0 0 2m 0 0 3m-p-1 0 p-1 3m+2p-1
m>=2p-1 | m 0 m m-p p m m-p 2p-1 m-1 p-1 2m+p-1
p>=3 m>=2p-1 | 3 2m+2p-8 0 0 2m-p+3 0 0 2m+1 0 3p-7 4m+p-3
m>=2p-1 | 2p-1 2m-2p-1 2 2 2m+2p-6 2 2 2m-2p-1 0 4p-4 2m+4p-7
m>=2p-1 | m 0 m m 0 m m 0 m 0 2m
m>=2p-1 | m 0 m m-p+1 2p-2 m m-p+1 0 m-1 2p-2 2m+2p-3
p>=3 m>=2p-1 | 2p-1 2m-2p 1 1 2m+2p-5 1 1 2m-2p+2 0 2p-2 4m+2p-6
m>=2p-1 | 1 2m+2p-4 1 0 2m-p 1 0 2m-1 0 3p-3 2m+2p-3
m>=2p-1 | m-2p+2 2p-2 m m-p p m m-p 2p-1 m-1 3p-3 2m+p-2
m>=2p-1 | m-1 1 m-p+1 m-p+1 4p-4 m-p+1 m-p+1 1 m-p-1 4p-4 2m+3p-6
m>=2p-1 | 2p-1 2m-2p-1 2 p+1 2m-4 2 p+1 2m-2p-1 1 2p-2 2m+2p-4
m>=2p-1 | 1 2m 0 0 2m 0 0 2m 0 1 2m+1
p>=3 m>=2p-1 | 1 2m-2 1 1 2m+2p-4 1 1 2m-2p+1 0 6p-8 2m+4p-6
m>=2p-1 | 1 2m-2 1 1 2m 1 1 2m-3 0 4 2m+1
m>=2p-1 | m-2p+2 2p-2 m m-p+1 2p-2 m m-p+1 0 m-1 4p-4 2m+2p-4
m>=2p-1 | 2p-1 2m-p-2 2 p 2m-p-2 2 p 2m-2p 1 2p-2 2m+2p-3
p>=3 m>=2p-1 | 1 2m+2p-4 0 0 2m-p+2 0 0 2m 0 3p-5 2m+2p-2
p>=3 m>=2p-1 | 1 2m-p p-1 0 2m-p+2 p-1 0 2m p-2 3p-3 4m-p
p>=3 m<=2p m>=2p-1 | m-2p+2 -m+4p-2 2m-2p m-p+1 -2m+6p-2 2m-2p m-p+1 -m+2p 3m-4p-1 -2m+8p-4 6p-4
p>=3 m>=2p-1 | 2p-1 2m-2p 1 0 2m+p-3 1 0 2m+1 0 p-1 4m+p-4
m>=2p-1 | 1 2m-2 1 0 2m+p-2 1 0 2m 0 5p-7 2m+3p-5
p>=4 m>=2p-1 | 2p-3 2m-2p+4 0 0 2m 0 0 2m+p-2 0 p-1 4m
"""

_DUALPIPE_V = """
- | 2p+L-2 2m-p-2L-1 L+1 L+1 2m+2p-2L-4 L+1 L+1 2m-p-2L L 4m+p-4M-9 4m+3p-2L-2M-8
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
- | L 2m+2p-2L-2 L L 2m-2L L L 2m-2L L 4m-4M-8 4m+p-2L-2M-5
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
- | m 0 m m 0 m m 0 m 0 2m
    m-2p+1 0 m-p m-p 0 m-2p+1
m>=2p+1 | m-2p+1 6p-4 m-2p+1 m-p+1 3p-2 m-2p+1 m-p+1 3p-2 m-2p+1 7p-7 2m+4p-8
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
- | m-1 p-1 m-p+1 m-p+1 4p-4 m-p+1 m-p+1 p m-p 5p-5 2m+4p-7
    m-2p p-1 m-p m-p p-1 m-2p
- | L 2m+2p-2L-2 L L+1 2m+p-2L-2 L L+1 2m-p-2L L 4m+p-4M-9 4m+2p-2L-2M-7
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
m=2p | 1 5p-5 2 2 6p-6 2 2 3p-2 1 11p-15 11p-13
    0 3p-3 1 1 3p-3 0
p>=4 | m-2p+3 6p-7 m-2p+1 m-2p+1 4p-2 m-2p+1 m-2p+1 4p-2 m-2p+1 7p-9 2m+6p-7
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
m=2p | 2 4p-4 p+1 2 4p-4 p+1 2 2p-2 p+1 8p-8 9p-9
    1 2p-2 1 1 2p-2 1
- | m-2p+2 4p-4 m-p+1 m-2p+1 3p-2 m-p+1 m-2p+1 3p-2 m-p+1 7p-7 2m+4p-7
    m-2p+1 2p-2 m-2p+1 m-2p+1 2p-2 m-2p+1
p>=3 | 2p-3 2m-p+2 1 2 2m+2p-7 1 2 2m-p-2 1 5p-4 4m+3p-10
    0 2m-p-3 1 1 2m-p-3 0
p>=4 m>=2p+1 | m-1 3p-3 m-2p+3 m-2p+2 6p-8 m-2p+3 m-2p+2 3p-3 m-2p+2 7p-4 2m+6p-8
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
m>=2p+1 | m-1 3p-3 m-2p+2 m-p+1 4p-4 m-2p+2 m-p+1 3p-2 m-2p+1 7p-7 2m+5p-9
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
- | m 2p-2 m-p+1 m-p+1 2p-2 m-p+1 m-p+1 2p-2 m-p+1 4p-4 2m+3p-5
    m-2p+1 2p-2 m-2p+1 m-2p+1 2p-2 m-2p+1
- | L 2m+2p-2L-2 L p+L 2m-p-2L L p+L 2m-p-2L L 4m-p-4M-7 4m-2L-2M-4
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
p>=3 | 1 2m+2p-5 1 1 2m-2 1 1 2m-2 1 3p-1 4m+2p-7
    0 2m-p-3 1 1 2m-p-3 0
p>=3 | L 2m-p-2L-1 L+1 L+1 2m+2p-2L-4 L+1 L+1 2m-p-2L L 4m+p-4L-7 4m+p-2L-8
    L-1 2m-3p-2L+1 L L 2m-3p-2L+1 L-1
- | m-2p+1 3p-3 m-p+1 m-p+1 4p-4 m-p+1 m-p+1 p m-p 7p-7 2m+4p-8
    m-2p p-1 m-p m-p p-1 m-2p
m<=2p+1 | m-1 3p-3 m-2p+2 m-p+1 4p-4 m-2p+2 m-p+1 3p-2 m-2p+1 4m-p-8M-3 2m+5p-9
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
- | m-2p-L+3 2p+2L-4 m-L+1 m-p-L+1 p+2L-2 m-L+1 m-p-L+1 p+2L-2 m-L+1 3p+4L-7 2m+p-2
    m-2p-L+2 2L-2 m-p-L+1 m-p-L+1 2L-2 m-2p-L+2
p>=3 | 1 2m+p-6 1 1 2m+2p-4 1 1 2m-p 0 5p-6 4m+3p-10
    0 2m-p-4 0 0 2m-p-4 0
p>=4 m>=3p | p+L-3 2m-p-2L+3 p+L-2 p+L-2 2m-2L+2 p+L-2 p+L-2 2m-3p-2L+6 p+L-3 4m-p-4L+5 4m+p-4L-1
    p+L-4 2m-3p-2L+5 p+L-3 p+L-3 2m-3p-2L+5 p+L-4
p<=2 | L 2L+4 L 2m-3L-2 2L+2 L 2m-3L-2 2L+2 L m+2L-1 4L+3
    L-1 2L-1 L L 2L-1 L-1
- | m-1 p-1 m-p+1 m 2p-2 m-p+1 m p m-p 3p-3 2m+2p-4
    m-2p p-1 m-p m-p p-1 m-2p
m<=2p+1 m>=2p+1 | L 2m+p-2L-3 L+1 L+1 2m+2p-2L-4 L+1 L+1 2m-p-2L L 4m+3p-4L-7 4m+3p-4L-7
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
- | m 2p-2 m-p+1 m-2p+2 4p-4 m-p+1 m-2p+2 2p-2 m-p+1 6p-6 2m+5p-8
    m-2p+1 2p-2 m-2p+1 m-2p+1 2p-2 m-2p+1
p>=3 | 3 2m+2p-8 0 0 2m 0 0 2m 0 3p-8 4m+2p-5
    0 2m-p-4 0 0 2m-p-4 0
- | m 0 m m-p+1 2p-2 m m-p+1 0 m 2p-2 2m+2p-3
    m-2p+1 0 m-p m-p 0 m-2p+1
p>=3 | m 0 m m-p p m m-p p m 1 2m+p
    m-2p+1 0 m-p m-p 0 m-2p+1
m>=2p+1 | M+1 2m+p-2M-5 M+2 M+1 2m+p-2M-4 M+2 M+1 2m-2M-2 M+1 4m+2p-4M-10 4m+2p-2L-2M-7
    M 2m-p-2M-3 M+1 M+1 2m-p-2M-3 M
p>=3 m>=2p+2 | L 2m-p+2L-4M-1 L+1 L+1 2m+2p-2L-4 L+1 L+1 2m-p-2L L 4m+p+2L-6M-9 4m+p-L-3M-4
    L-1 2m-3p+2L-4M+1 L L 2m-3p+2L-4M+1 L-1
p>=3 m<=3p | m-2p+1 5p-5 m-2p+2 m-2p+2 6p-6 m-2p+2 m-2p+2 3p-2 m-2p+1 4m-2p-8 8p-7
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
p>=3 | 1 2m+2p-5 1 2 2m+p-4 1 2 2m-p-2 1 5p-4 4m+3p-10
    0 2m-p-3 1 1 2m-p-3 0
p>=3 m<=2p+1 | m-2p+1 5p-5 m-2p+3 m-2p+1 5p-6 m-2p+3 m-2p+1 4p-3 m-2p+2 4m+2p-8M-9 4m+2p-4M-9
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
m>=2p+2 | 2p+L-1 2m-p-2L-3 L+2 L+2 2m+2p-2L-6 L+2 L+2 2m-p-2L-2 L+1 4m+p-4L-9 4m+3p-4L-8
    L 2m-p-2L-3 L+1 L+1 2m-p-2L-3 L
m>=2p+1 | m-1 3p-3 m-2p+2 m-2p+2 6p-6 m-2p+2 m-2p+2 3p-2 m-2p+1 6p-6 2m+4p-9
    m-2p 3p-3 m-2p+1 m-2p+1 3p-3 m-2p
- | L+1 2m-2L-2 p+L L 2m-p-2L p+L L 2m-p-2L p+L 4m-p-4L-3 4m-2L-2M-3
    L 2m-2p-2L L L 2m-2p-2L L
- | m-2p+1 4p-2 m-2p+1 m-p+1 3p-2 m-2p+1 m-p+1 3p-2 m-2p+1 4p-4 2m+p-4
    m-2p p-1 m-2p+1 m-2p+1 p-1 m-2p
p>=3 m>=2p+1 | L 2m+p-2L-3 L+2 L+1 2m+2p-2L-6 L+2 L+1 2m-p-2L-1 L+1 4m+3p-4L-15 4m+3p-2L-2M-9
    L-1 2m-p-2L-1 L L 2m-p-2L-1 L-1
p>=3 m>=3p | 2p-1 2m-p-3 2 2 2m+2p-6 2 2 2m-p-2 1 5p-7 4m+3p-15
    0 2m-p-3 1 1 2m-p-3 0
"""

PATHS: Mapping[str, str] = MappingProxyType(
    {
        "1f1b": _ONE_F_ONE_B,
        "interleaved": _INTERLEAVED,
        "zero-bubble-h1": _ZERO_BUBBLE_H1,
        "zbv": _ZBV,
        "dualpipe-v": _DUALPIPE_V,
    }
)
"""Paths by schedule; gpipe needs none."""
