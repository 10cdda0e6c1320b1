// Memory for matrices, and their products, transposed copies and sums.
#pragma once

#include "simd.hpp"

namespace INSTRUCTIONS {

// Memory provided by the caller and handed out piece by piece.
struct Memory {
    char* base;  // Zeros, or null to only count the bytes.
    int64_t used = 0;

    template <class T> T* take(int64_t count) {
        constexpr int64_t LINE = 64;
        T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += (count * static_cast<int64_t>(sizeof(T)) + LINE - 1) / LINE * LINE;
        return piece;
    }
};

// Rows of internal matrices are padded to whole vectors of any instruction set. Their stride is an odd multiple of the
// padding, because strides of powers of two cause cache conflicts.
constexpr int64_t PADDING = 16;

constexpr int64_t padded(int64_t columns) { return (columns + PADDING - 1) / PADDING * PADDING; }

constexpr int64_t stride_of(int64_t columns) { return PADDING * ((padded(columns) / PADDING) | 1); }

// C = A B, optionally with `bias` and the old C added. B's rows are padded, so that whole vectors may be read.
template <class T> struct Product {
    const T* a;
    int64_t a_row, a_column;  // The strides of A.
    const T* b;
    int64_t b_row;
    T* c;
    int64_t c_row;
    int64_t rows, columns, depth;
    const T* bias = nullptr;  // One number per row, added to the product.
    bool add = false;         // Whether the product is added to C.
};

template <class T> inline void write(const Product<T>& p, int64_t row, int64_t column, Vector<T> values) {
    if (p.bias) values += broadcast(p.bias[row]);
    T* c = p.c + row * p.c_row + column;
    if (column + LANES<T> <= p.columns) {
        if (p.add) values += load(c);
        store(values, c);
        return;
    }
    T lanes[LANES<T>];
    store(values, lanes);
    for (int64_t i = 0; i < p.columns - column; ++i) c[i] = p.add ? c[i] + lanes[i] : lanes[i];
}

// Computes M rows of C, each N vectors wide, which stay in registers.
template <int M, int N, class T> inline void block(const Product<T>& p, int64_t row, int64_t column) {
    Vector<T> sums[M][N] = {};
    const T *a = p.a + row * p.a_row, *b = p.b + column;
    for (int64_t k = 0; k < p.depth; ++k, a += p.a_column, b += p.b_row) {
        Vector<T> right[N];
        UNROLLED for (int n = 0; n < N; ++n) right[n] = load(b + n * LANES<T>);
        UNROLLED for (int m = 0; m < M; ++m) {
            const Vector<T> left = broadcast(a[m * p.a_row]);
            UNROLLED for (int n = 0; n < N; ++n) sums[m][n] += left * right[n];
        }
    }
    UNROLLED for (int m = 0; m < M; ++m)
        UNROLLED for (int n = 0; n < N; ++n)
            if (column + n * LANES<T> < p.columns) write(p, row + m, column + n * LANES<T>, sums[m][n]);
}

// Computes all rows from `row` on, M at a time, and the rest in smaller blocks.
template <int M, int N, class T> inline void rows_from(const Product<T>& p, int64_t row, int64_t column) {
    for (; row + M <= p.rows; row += M) block<M, N>(p, row, column);
    if constexpr (M > 1) rows_from<M / 2, N>(p, row, column);
}

template <class T> void multiply(const Product<T>& p) {
    int64_t column = 0;
    for (; column + LANES<T> < p.columns; column += 2 * LANES<T>) rows_from<BLOCK_ROWS, 2>(p, 0, column);
    if (column < p.columns) rows_from<BLOCK_ROWS, 1>(p, 0, column);
}

#if defined(HAS_SHUFFLES)
// Exchanges the off-diagonal parts of two rows in squares of D by D.
template <int D, class T, int... J>
inline void exchange(Vector<T>& upper, Vector<T>& lower, std::integer_sequence<int, J...>) {
    constexpr int L = LANES<T>;
    const Vector<T> a = upper, b = lower;
    upper = __builtin_shufflevector(a, b, (J & D ? L + J - D : J)...);
    lower = __builtin_shufflevector(a, b, (J & D ? L + J : J + D)...);
}

template <int D, class T> inline void exchange_all(Vector<T>* rows) {
    for (int i = 0; i < LANES<T>; ++i)
        if (!(i & D)) exchange<D, T>(rows[i], rows[i + D], std::make_integer_sequence<int, LANES<T>>());
    if constexpr (D > 1) exchange_all<D / 2, T>(rows);
}
#endif

// Transposes a matrix with as many rows and columns as a vector has lanes.
template <class T> inline void transpose_square(const T* from, int64_t from_row, T* to, int64_t to_row) {
#if defined(HAS_SHUFFLES)
    Vector<T> rows[LANES<T>];
    for (int i = 0; i < LANES<T>; ++i) rows[i] = load(from + i * from_row);
    exchange_all<LANES<T> / 2, T>(rows);
    for (int i = 0; i < LANES<T>; ++i) store(rows[i], to + i * to_row);
#else
    for (int i = 0; i < LANES<T>; ++i)
        for (int j = 0; j < LANES<T>; ++j) to[j * to_row + i] = from[i * from_row + j];
#endif
}

// Writes the transposed matrix. `from_row` and `to_row` are the strides of the two matrices.
template <class T>
void transpose(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row) {
    constexpr int64_t L = LANES<T>;
    for (int64_t i = 0; i < rows; i += L)
        for (int64_t j = 0; j < columns; j += L) {
            const T* square = from + i * from_row + j;
            T* transposed = to + j * to_row + i;
            const int64_t high = rows - i < L ? rows - i : L, wide = columns - j < L ? columns - j : L;
            if (high == L && wide == L) {
                transpose_square(square, from_row, transposed, to_row);
                continue;
            }
            for (int64_t column = 0; column < wide; ++column)
                for (int64_t row = 0; row < high; ++row)
                    transposed[column * to_row + row] = square[row * from_row + column];
        }
}

// The sum of numbers. Their count must be a multiple of the padding.
template <class T> T sum_of(const T* numbers, int64_t count) {
    Vector<T> total = {};
    for (int64_t i = 0; i < count; i += LANES<T>) total += load(numbers + i);
    return sum<T>(total);
}

// The scalar product of two vectors. Their length must be a multiple of the padding.
template <class T> T dot(const T* a, const T* b, int64_t count) {
    Vector<T> total = {};
    for (int64_t i = 0; i < count; i += LANES<T>) {
        const Vector<T> right = load(b + i);
        total += load(a + i) * right;
    }
    return sum<T>(total);
}

template <class T> T sum_of_squares(const T* numbers, int64_t count) {
    Vector<T> totals[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES<T> <= count; i += 4 * LANES<T>)
        for (int n = 0; n < 4; ++n) {
            const Vector<T> vector = load(numbers + i + n * LANES<T>);
            totals[n] += vector * vector;
        }
    for (int n = 1; n < 4; ++n) totals[0] += totals[n];
    T total = sum<T>(totals[0]);
    for (; i < count; ++i) total += numbers[i] * numbers[i];
    return total;
}

}  // namespace INSTRUCTIONS
