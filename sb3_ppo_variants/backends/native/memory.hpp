// Memory provided by the caller and handed out piece by piece.
namespace INSTRUCTIONS {

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

}  // namespace INSTRUCTIONS
