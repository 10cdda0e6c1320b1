// The sizes of images and filters, and image bytes in the forms that tiles take.
namespace {

constexpr int64_t FILTERS = 32, SIZE = 8, STEP = 4, CHANNELS = 4, PARTS = 3;
constexpr int64_t PATCH = SIZE * SIZE * CHANNELS;  // Bytes that a filter covers.
constexpr int64_t NEXT = STEP * CHANNELS;          // Bytes between the patches of neighbouring pixels of the output.

// The output has `height` rows of `width` pixels. A row is computed in `parts` parts of `part` pixels each.
struct Output {
    int64_t height, width, parts, part;

    Output(const Images& images, int64_t most, int64_t multiple)
        : height((images.height - SIZE) / STEP + 1),
          width((images.width - SIZE) / STEP + 1),
          parts((width + most - 1) / most),
          part(((width + parts - 1) / parts + multiple - 1) / multiple * multiple) {}
    int64_t numbers() const { return height * width * FILTERS; }
};

// Copies the bytes of the i-th selected image as (height, width, 4).
__attribute__((noinline)) void read(const Images& images, int64_t i, uint8_t* bytes) {
    const int64_t size = images.height * images.width;
    const uint8_t* image = images.bytes + images.rows[i] * size * CHANNELS;
    if (!images.in_planes) {
        memcpy(bytes, image, size * CHANNELS);
        return;
    }
    int64_t pixel = 0;
    for (; pixel + LANES <= size; pixel += LANES) {
        __m128i planes[CHANNELS];
        for (int64_t c = 0; c < CHANNELS; ++c)
            planes[c] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(image + c * size + pixel));
        __m128i* to = reinterpret_cast<__m128i*>(bytes + pixel * CHANNELS);
        const __m128i low = _mm_unpacklo_epi8(planes[0], planes[1]), low2 = _mm_unpacklo_epi8(planes[2], planes[3]);
        const __m128i high = _mm_unpackhi_epi8(planes[0], planes[1]), high2 = _mm_unpackhi_epi8(planes[2], planes[3]);
        _mm_storeu_si128(to, _mm_unpacklo_epi16(low, low2));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low, low2));
        _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high, high2));
        _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high, high2));
    }
    for (; pixel < size; ++pixel)
        for (int64_t c = 0; c < CHANNELS; ++c) bytes[pixel * CHANNELS + c] = image[c * size + pixel];
}

// Converts the bytes of an image to bfloat16.
__attribute__((noinline)) void as_numbers(const uint8_t* bytes, int64_t size, uint16_t* numbers) {
    for (int64_t i = 0; i < size; i += LANES) {
        const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits(bytes + i), 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + i), halves);
    }
}

// Pairs each byte with the byte that lies at the same place in the patch of the next output pixel, as bfloat16.
__attribute__((noinline)) void as_pairs(const uint8_t* bytes, int64_t size, uint32_t* pairs) {
    __m512i here = bits(bytes);
    for (int64_t i = 0; i < size; i += LANES) {
        const __m512i next = bits(bytes + i + NEXT);
        _mm512_storeu_si512(pairs + i, side_by_side(here, next));
        here = next;
    }
}

}  // namespace
