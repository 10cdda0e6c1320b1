// The threads of a team. Tasks are long compared to what it takes to begin one, and short compared to a time slice.
#include "threads.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
#include <intrin.h>
#endif

namespace {

// How often a thread that waits looks again at once, and how often it lets others have its core before; then it naps.
// The first take some microseconds, about as long as the slowest of tasks of the same size is late. Whoever waits longer
// waits for Python, or for a thread without a core, which may be the one that this thread is on.
constexpr int LOOKS = 500, YIELDS = 50;
constexpr std::chrono::microseconds NAP{50};

void relax() {
#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
    _mm_pause();
#elif defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    asm volatile("yield");
#endif
}

// Waits until the condition holds.
template <class Condition> void wait_until(Condition condition) {
    for (int waits = 0; !condition(); ++waits) {
        if (waits < LOOKS)
            relax();
        else if (waits < LOOKS + YIELDS)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(NAP);
    }
}

}  // namespace

struct Team::Shared {
    static constexpr uint64_t TASKS = 0xffffffff;

    // The number of the computation in the upper half, and in the lower how many of its tasks nobody has begun. A thread
    // that is late therefore cannot mistake the tasks of one computation for those of another.
    std::atomic<uint64_t> open{0};
    std::atomic<int64_t> unfinished{0};
    std::atomic<bool> ended{false};
    // They change only when no task is unfinished.
    Task task = nullptr;
    void* data = nullptr;
    int64_t count = 0;
    std::vector<std::thread> others;

    // Computes tasks until none are open.
    void work(int64_t member) {
        uint64_t seen = open.load(std::memory_order_acquire);
        while (seen & TASKS) {
            if (!open.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            task(data, member, count - static_cast<int64_t>(seen & TASKS));
            unfinished.fetch_sub(1, std::memory_order_release);
            seen = open.load(std::memory_order_acquire);
        }
    }

    void serve(int64_t member) {
        while (!ended.load(std::memory_order_acquire)) {
            work(member);
            wait_until([&] { return (open.load(std::memory_order_acquire) & TASKS) || ended.load(std::memory_order_acquire); });
        }
    }
};

Team::Team(int64_t size) : shared(new Shared) {
    try {
        for (int64_t member = 1; member < size; ++member)
            shared->others.emplace_back([this, member] { shared->serve(member); });
    } catch (...) {  // The system has no more threads.
    }
}

Team::~Team() {
    shared->ended.store(true, std::memory_order_release);
    for (std::thread& other : shared->others) other.join();
    delete shared;
}

void Team::run(int64_t count, Task task, void* data) {
    if (shared->others.empty()) {
        for (int64_t index = 0; index < count; ++index) task(data, 0, index);
        return;
    }
    shared->task = task;
    shared->data = data;
    shared->count = count;
    shared->unfinished.store(count, std::memory_order_relaxed);
    const uint64_t number = (shared->open.load(std::memory_order_relaxed) >> 32) + 1;
    shared->open.store(number << 32 | static_cast<uint64_t>(count), std::memory_order_release);
    shared->work(0);
    wait_until([&] { return shared->unfinished.load(std::memory_order_acquire) == 0; });
}
