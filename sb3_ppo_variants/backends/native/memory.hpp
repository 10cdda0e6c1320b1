// Memory that the caller gives, taken piece by piece.
namespace INSTRUCTIONS {

struct Memory {
    char* base;  // Null, or zeros: null only counts.
    int64_t used = 0;

    template <class T> T* take(int64_t count) {
        constexpr int64_t LINE = 64;
        T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
        used += (count * static_cast<int64_t>(sizeof(T)) + LINE - 1) / LINE * LINE;
        return piece;
    }
};

}  // namespace INSTRUCTIONS
