/* The flags of x86, and the conditions of branches made of them (Intel SDM volume 1, 3.4.3 and appendix B). */
#ifndef LASTBRANCH_X86_FLAGS_H
#define LASTBRANCH_X86_FLAGS_H

#include "lastbranch.h"

enum {
    CF = 1,
    PF = 4,
    AF = 0x10,
    ZF = 0x40,
    SF = 0x80,
    TF = 0x100,
    DF = 0x400,
    OF = 0x800,
    NT = 0x4000,
    RF = 0x10000,
    AC = 0x40000,
    ID = 0x200000
};

/* Whether the condition with this code, 0 to 15, holds. Its lowest bit negates. */
static inline int holds(unsigned condition, u64 flags)
{
    int less = !(flags & SF) != !(flags & OF), is = 0;
    switch (condition >> 1) {
    case 0: is = (flags & OF) != 0; break;
    case 1: is = (flags & CF) != 0; break;
    case 2: is = (flags & ZF) != 0; break;
    case 3: is = (flags & (CF | ZF)) != 0; break;
    case 4: is = (flags & SF) != 0; break;
    case 5: is = (flags & PF) != 0; break;
    case 6: is = less; break;
    case 7: is = (flags & ZF) != 0 || less; break;
    }
    return is != (int)(condition & 1);
}

#endif
