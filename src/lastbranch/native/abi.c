/* What the library says of itself. */
#include "lastbranch.h"

EXPORT int lb_abi(void) { return LASTBRANCH_ABI; }

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
