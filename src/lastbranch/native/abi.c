/* The library's description of itself. */
#include "lastbranch.h"

#ifndef LASTBRANCH_ABI /* by abi() of signatures.py; without it, the package refuses the library */
#define LASTBRANCH_ABI 0
#endif

EXPORT u32 lb_abi(void) { return LASTBRANCH_ABI; }

EXPORT const char *lb_compiler(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "a C compiler";
#endif
}
