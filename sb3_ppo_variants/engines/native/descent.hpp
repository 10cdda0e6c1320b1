// Passes over the rollout that minimise the loss, with the steps of Adam.
#pragma once

#include "adam.hpp"
#include "interface.hpp"
#include "threads.hpp"
#include "worker.hpp"

namespace INSTRUCTIONS {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// Threads share the blocks of a minibatch, and of each block policy and values. They write gradients to vectors of their
// own, which are added in the order of the blocks. A single thread adds the same numbers in the same order, but at once.
template <class T, class Distribution> class Descent {
  public:
    Descent(const Networks<T>& networks, const Rollout<T>& rollout, const Terms& terms, const OwnLosses<T>& own,
            Proximal<T>& proximal, Pass& pass, Adam<T>& adam, Memory& memory)
        : rollout(rollout), terms(terms), own(own), proximal(proximal), pass(pass), adam(adam),
          is_alone(pass.threads == 1),
          most_blocks(is_alone ? 1 : least(2 * pass.threads, parts_of(pass.batch_size, pass.block_rows))),
          ranges(parts_of(adam.size, pass.range_size)), advantages(memory.take<T>(pass.batch_size)),
          last_gradient(memory.take<T>(ends_early() ? adam.size : 0)),
          gradients(memory.take<T>(is_alone ? 0 : most_blocks * adam.size)), squares(memory.take<T>(ranges)),
          sums_of(memory.take<Sums>(2 * most_blocks)), workers(memory.take<Computing>(pass.threads)) {
        for (int64_t i = 0; i < pass.threads; ++i) {
            if (memory.base)
                new (workers + i) Computing(networks, rollout, terms, own, proximal, memory);
            else
                Computing(networks, rollout, terms, own, proximal, memory);
        }
    }

    void run() {
        Team together(pass.threads);
        team = &together;
        for (int64_t start = 0; start < rollout.rows; start += pass.batch_size)
            if (!minibatch(pass.permutation + start, least(pass.batch_size, rollout.rows - start))) return;
    }

  private:
    using Computing = Worker<T, Distribution>;

    const Rollout<T>& rollout;
    const Terms& terms;
    const OwnLosses<T>& own;
    Proximal<T>& proximal;
    Pass& pass;
    Adam<T>& adam;
    bool is_alone;
    int64_t most_blocks, ranges;
    T *advantages, *last_gradient, *gradients, *squares;
    Sums* sums_of;
    Computing* workers;
    Team* team = nullptr;

    bool ends_early() const { return pass.limit < INFINITY; }

    // Calls a function in Python. Returns whether that succeeded.
    template <class Function, class... Arguments> bool call(Function* function, Arguments... arguments) {
        pass.answered = 0;
        function(arguments...);
        return pass.answered;
    }

    // Averages a number over the processes. Returns whether that succeeded.
    bool average(double& number) { return !pass.average || call(pass.average, &number); }

    // Adapts the step size to the KL of a minibatch.
    void adapt(double kl) {
        double& rate = adam.learning_rate;
        if (kl > pass.tolerance * pass.desired_kl)
            rate = ::fmax(rate / pass.factor, pass.min_learning_rate);
        else if (kl > 0 && kl < pass.desired_kl / pass.tolerance)
            rate = ::fmin(rate * pass.factor, pass.max_learning_rate);
    }

    // Returns whether to continue.
    bool minibatch(const int64_t* indices, int64_t count) {
        double* measured = pass.measured + MEASURED * pass.minibatches++;
        const int64_t bytes = adam.size * static_cast<int64_t>(sizeof(T));
        if (ends_early()) memcpy(last_gradient, adam.gradient, bytes);
        Sums sums;
        if (!loss_and_gradient(indices, count, sums)) return false;
        sums.write(terms, count, measured);
        double statistic = measured[pass.statistic], kl = measured[KL];
        if (ends_early() && !average(statistic)) return false;
        if (statistic > pass.limit) {
            // No step follows, so restore the gradient of the last step.
            memcpy(adam.gradient, last_gradient, bytes);
            pass.ended_early = 1;
            pass.exceeded = statistic;
            return false;
        }
        if (pass.desired_kl > 0 && pass.minibatches > 1) {
            if (!average(kl)) return false;
            adapt(kl);
        }
        if (pass.average_gradient && !call(pass.average_gradient)) return false;
        pass.norm = norm();
        if (!(pass.norm < INFINITY)) return false;
        const Step<T> step(adam, pass.norm);
        in_ranges([&](int64_t, int64_t first, int64_t end) { step.take(first, end); });
        if (proximal.average) follow();
        return true;
    }

    // Adds the parameters to the average, after the earlier ones have decayed.
    void follow() {
        const double before = proximal.decay * proximal.total_weight;
        const T kept = static_cast<T>(before / (before + 1)), weight = static_cast<T>(1 / (before + 1));
        proximal.total_weight = before + 1;
        in_ranges([&](int64_t, int64_t first, int64_t end) {
            T* __restrict average = proximal.average;
            for (int64_t i = first; i < end; ++i) average[i] = kept * average[i] + weight * adam.parameters[i];
        });
    }

    // Returns whether the losses could be evaluated.
    bool loss_and_gradient(const int64_t* indices, int64_t count, Sums& sums) {
        const bool calls = terms.of_policy && own.evaluate, calls_values = terms.of_value && own.evaluate_values;
        const bool is_ahead = calls || (terms.of_policy && reads_mean(terms.objective));
        const int64_t start = indices - pass.permutation;
        for (int64_t i = 0; i < count; ++i)
            advantages[i] = rollout.advantages[terms.advantages == NORMALIZED_IN_ORDER ? start + i : indices[i]];
        if (terms.advantages == NORMALIZED) normalize(advantages, count);
        Minibatch<T> all{indices, count, advantages, T(0)};
        Sums ahead;
        if (is_ahead || calls_values) {
            const auto look_ahead = [&](Computing& worker, int64_t, const Portion& portion, Sums& found) {
                worker.look_ahead(all, portion, found);
            };
            in_blocks(count, is_ahead, calls_values, ahead, look_ahead, [](int64_t, int64_t) {});
            all.mean_kl = static_cast<T>(ahead.of[KL] / static_cast<double>(count));
        }
        if (calls) {
            sums = ahead;
            memcpy(own.advantages, advantages, count * sizeof(T));
            if (!call(own.evaluate, start, count)) return false;
            sums.of[POLICY_LOSS] = *own.loss * static_cast<double>(count);
        }
        if (calls_values) {
            if (!call(own.evaluate_values, start, count)) return false;
            sums.of[VALUE_LOSS] = *own.value_loss * static_cast<double>(count);
        }
        const auto descend = [&](Computing& worker, int64_t block, const Portion& portion, Sums& found) {
            worker.descend(all, portion, target_of(block), found);
        };
        const auto add = [&](int64_t first, int64_t end) { add_gradients(first, end); };
        in_blocks(count, terms.of_policy, terms.of_value, sums, descend, add);
        return true;
    }

    // Where the gradient of a block goes.
    Target<T> target_of(int64_t block) const {
        if (is_alone || block == 0) return {adam.gradient, adam.gradient, block > 0};
        return {adam.gradient, gradients + block % most_blocks * adam.size, false};
    }

    // Adds the gradients of some blocks that have vectors of their own.
    void add_gradients(int64_t first_block, int64_t end_block) {
        if (is_alone || end_block == 1) return;
        in_ranges([&](int64_t, int64_t first, int64_t end) {
            for (int64_t block = first_block > 0 ? first_block : 1; block < end_block; ++block) {
                T* __restrict total = adam.gradient;
                const T* __restrict gradient = target_of(block).gradient;
                for (int64_t i = first; i < end; ++i) total[i] += gradient[i];
            }
        });
    }

    double norm() {
        in_ranges([&](int64_t range, int64_t first, int64_t end) {
            squares[range] = sum_of_squares(adam.gradient + first, end - first);
        });
        double total = 0;
        for (int64_t i = 0; i < ranges; ++i) total += squares[i];
        return ::sqrt(total);
    }

    // Calls the first function for every block of a minibatch and adds its sums. Some blocks are computed at the same time;
    // when they are complete, it calls the second function, before the next ones begin.
    template <class Compute, class Complete>
    void in_blocks(int64_t count, bool of_policy, bool of_value, Sums& sums, Compute compute, Complete complete) {
        const int64_t blocks = parts_of(count, pass.block_rows), shares = is_alone ? 1 : of_policy + of_value;
        for (int64_t first = 0; first < blocks; first += most_blocks) {
            const int64_t end = least(first + most_blocks, blocks), tasks = (end - first) * shares;
            share(tasks, [&](int64_t member, int64_t task) {
                const int64_t block = first + task / shares, row = block * pass.block_rows;
                Portion portion{row, least(row + pass.block_rows, count), of_policy, of_value};
                if (shares == 2) (task % 2 == 0 ? portion.of_value : portion.of_policy) = false;
                sums_of[task] = {};
                compute(workers[member], block, portion, sums_of[task]);
            });
            for (int64_t task = 0; task < tasks; ++task) sums.add(sums_of[task]);
            complete(first, end);
        }
    }

    // Calls a function for every range of the parameters.
    template <class Compute> void in_ranges(Compute compute) {
        share(ranges, [&](int64_t, int64_t range) {
            const int64_t first = range * pass.range_size;
            compute(range, first, least(first + pass.range_size, adam.size));
        });
    }

    // Calls a function with a member of the team and a number below the count, for all numbers.
    template <class Compute> void share(int64_t count, Compute compute) {
        const Task task = [](void* data, int64_t member, int64_t index) {
            (*static_cast<Compute*>(data))(member, index);
        };
        team->run(count, task, &compute);
    }
};

}  // namespace INSTRUCTIONS
