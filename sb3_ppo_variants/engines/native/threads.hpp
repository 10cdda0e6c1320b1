// Threads that share the tasks of a computation.
#pragma once

#include <stdint.h>

// Computes the task `index`, in the thread `member`.
typedef void (*Task)(void* data, int64_t member, int64_t index);

// The thread that creates a team and others, which end with the team: nothing outlives a call of the library, so there
// is nothing that a forked process lacks.
//
// It is compiled once for every processor, and its file alone uses the standard library's threads; see
// instruction_set.hpp.
class Team {
  public:
    // There are fewer threads if the system does not grant that many.
    explicit Team(int64_t size);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Computes the tasks 0 to `count`, in any order. Members are numbered from 0, which is the calling thread.
    void run(int64_t count, Task task, void* data);

  private:
    struct Shared;
    Shared* shared;
};
