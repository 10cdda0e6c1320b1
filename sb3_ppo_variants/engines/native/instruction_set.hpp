// The instruction set that a file is compiled for. INSTRUCTIONS is its name and the namespace of everything that is
// compiled for it, and VECTOR_BYTES the size of its vectors. Its registers hold BLOCK_ROWS rows of a product, each two
// vectors wide. By default, it is what every processor has: vectors have at least 16 bytes on x86-64 and arm64.
//
// Do not instantiate functions of the standard library in such a namespace: the linker would keep only one of their
// compilations, which may be for another instruction set. For the same reason, this file includes all headers of the
// standard library that they need; include it before BEGIN_TARGET.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <new>
#include <optional>
#include <utility>

#ifndef INSTRUCTIONS
#define INSTRUCTIONS plain
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define BLOCK_ROWS 8
#else
#define BLOCK_ROWS 4
#endif
#endif

// Everything between these two is compiled for processors with the named extensions.
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(names) PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#else
#define BEGIN_TARGET(names) PRAGMA(GCC target(names))
#define END_TARGET
#endif
