// Package heap reads the counters of malloc, for tests of leaks.
package heap

// #include <malloc.h>
// static size_t bytes_in_use(void) { struct mallinfo2 info = mallinfo2(); return info.uordblks + info.hblkhd; }
import "C"

// BytesInUse are those that malloc has given out, from its arenas and mapped.
func BytesInUse() int { return int(C.bytes_in_use()) }
