#include "runtime/training/batch_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/ir/error.h"
#include "platform/memory.h"
#include "runtime/plan/plan.h"
#include "runtime/support/report_text.h"
#include "runtime/training/run_memory.h"
#include "runtime/training/trainer.h"

namespace onnx_train {
namespace {

constexpr int64_t kFirst = 16;                // samples of the first plan
constexpr int64_t kPart = 64;                 // the result is at most 1/64 too small
constexpr double kAvailablePart = 31.0 / 32;  // other processes need memory, too
constexpr double kLimitPart = 127.0 / 128;    // what oneDNN allocates for convolutions while they run is not known
constexpr int kPlans = 2;                     // of an entry point: of its batches, and of the last, smaller one
constexpr double kNever = std::numeric_limits<double>::infinity();

class Search {
 public:
  Search(Session* session, const BatchSearch& search)
      : session_(*session), search_(search), micro_batches_(session->topology().micro_batches(search.per_step)) {
    on_host_ = session_.device().uses_host_memory();
    const int64_t first = search.training.fixed_batch() > 0 ? search.training.fixed_batch()
                                                            : std::min(kFirst, search.training.num_samples());
    const std::vector<std::unique_ptr<Plan>> alive = plans_of_a_run(first);
    // An arena of earlier runs is freed before a larger one is allocated.
    const auto arena = static_cast<double>(session_.arena_bytes());
    const double available = static_cast<double>(session_.device().available_bytes()) / search.processes + arena;
    const auto state = static_cast<double>(session_.state().bytes());
    const double own = on_host_ ? platform::resident_memory() - arena : state;
    limit_ = own + kAvailablePart * available;
    const double part = on_host_ ? kLimitPart : 1;
    if (search.limit > 0) limit_ = std::min(part * static_cast<double>(search.limit), own + available);
    DataBytes data;
    data.add(search_.training);
    if (search_.evaluation) data.add(*search_.evaluation);
    // The order of an epoch is a number for each sample.
    const double order = static_cast<double>(search.training.num_samples()) * sizeof(int64_t);
    const double first_steps = bytes_of_first_steps(session_.model());
    fixed_ = own + (on_host_ ? first_steps + data.made + order + (search.copies ? state : 0) : 0);
    smallest_ = kNever;
  }

  FoundBatch run() {
    const int64_t samples = search_.training.num_samples(), prescribed = search_.training.fixed_batch();
    if (prescribed > 0) return {prescribed, planned(prescribed), limit_, plans_, "the model, which fixes it"};
    double bytes = fixed_, last_bytes = fixed_;  // of `most`; of the plan before
    int64_t most = 0, above = samples + 1, last = 0;
    for (int64_t next = std::min(kFirst, samples); next > most;) {
      const double found = planned(next);
      const double slope = (found - last_bytes) / static_cast<double>(next - last);
      if (found <= limit_) {
        most = next;
        bytes = found;
      } else {
        above = next;
      }
      const bool is_close = limit_ - bytes <= (bytes - fixed_) / kPart;
      if (above - most <= 1 || (most > 0 && (is_close || above - most <= 1 + most / kPart))) break;
      last = std::isfinite(found) ? next : most;
      last_bytes = std::isfinite(found) ? found : bytes;
      next = choose(most, above, last, last_bytes, slope);
    }
    if (most == 0) {
      fail_as(ErrorCode::kMemoryBudget, "not even one sample fits: with a batch of one ", format_bytes(smallest_),
              " are planned, and there are ", format_bytes(limit_),
              "; --memory computes activations again, --precision bf16 halves them");
    }
    std::tie(most, bytes) = with_choices(most);
    while (most > 2 && most < samples && samples % most == 1) --most;
    return {most, bytes, limit_, plans_,
            most == samples ? concat("the ", samples, " samples of the data") : "the memory"};
  }

 private:
  // The nodes of a batch of `most` samples are timed, and the forms that they take need other memory than the rule's;
  // so does what the process keeps of the timing. Returns the batch that still fits, and its bytes.
  std::pair<int64_t, double> with_choices(int64_t most) {
    const double before = on_host_ ? platform::resident_memory() : 0;
    session_.set_new_choices(Choices::New::kTimed);
    double bytes = planned(most);
    session_.set_new_choices(Choices::New::kDrafted);
    const double kept = on_host_ ? std::max(platform::resident_memory() - before, 0.0) : 0;
    fixed_ += kept;
    bytes += kept;
    while (bytes > limit_ && most > 1) {
      const double fits = static_cast<double>(most) * (limit_ - fixed_) / (bytes - fixed_);
      most = std::clamp<int64_t>(static_cast<int64_t>(fits * (1 - 0.5 / kPart)), 1, most - 1);
      bytes = planned(most);
    }
    return {most, bytes};
  }

  // Returns the size to plan next, between `most` and `above`: the size at which a line through the memory of the last
  // two plans reaches the limit.
  int64_t choose(int64_t most, int64_t above, int64_t last, double last_bytes, double slope) const {
    const int64_t middle = most + (above - most) / 2;
    if (above - most <= 2 || !std::isfinite(slope) || slope <= 0) return std::max(middle, most + 1);
    // A little less than predicted: a plan that fits ends the search sooner than one that does not.
    const double predicted = static_cast<double>(last) + (limit_ - last_bytes) / slope;
    const double aimed = std::min(predicted - predicted / (2 * kPart), static_cast<double>(above - 1));
    return std::clamp(static_cast<int64_t>(aimed), most + 1, above - 1);
  }

  // The first plan brings code and tables into memory that every process has by its first step. On a host all plans of
  // a run are alive while its memory is measured, those of the smaller batches that end epochs included.
  std::vector<std::unique_ptr<Plan>> plans_of_a_run(int64_t batch) {
    std::vector<std::unique_ptr<Plan>> plans;
    if (!on_host_) {
      planned(batch);
      return plans;
    }
    const auto add = [&](const EntryName& entry, const Dataset& data) {
      for (int i = 0; i < kPlans; ++i)
        plans.push_back(session_.planned(entry, shapes_of_run(data, std::min(batch, data.num_samples()))));
    };
    try {
      add(training_entry(session_), search_.training);
      if (search_.evaluation) add(Entry::kEvaluate, *search_.evaluation);
    } catch (const Error& error) {
      if (error.kind() != ErrorCode::kMemory) throw;
    }
    ++plans_;
    return plans;
  }

  std::map<std::string, Shape> shapes_of_run(const Dataset& data, int64_t batch) const {
    return micro_batch_shapes(batch_shapes(data, batch), micro_batches_);
  }

  // Bytes with batches of `batch` samples; infinity where no plan is made for lack of memory.
  double planned(int64_t batch) {
    ++plans_;
    const auto batches = std::min(batch, search_.training.num_samples());
    try {
      const Entry entry = training_entry(session_);
      PlannedMemory sum = session_.planned_memory(entry, shapes_of_run(search_.training, batches));
      // An epoch ends with a smaller batch, whose plan has constants and slots of its own.
      const double smaller = search_.training.num_samples() % batch > 0 ? 2 : 1;
      double own = smaller * static_cast<double>(sum.constants + sum.slots);
      if (search_.evaluation) {
        const int64_t evaluated = std::min(batch, search_.evaluation->num_samples());
        const PlannedMemory more =
            session_.planned_memory(Entry::kEvaluate, shapes_of_run(*search_.evaluation, evaluated));
        sum.arena = std::max(sum.arena, more.arena);
        sum.outputs += more.outputs;
        own += 2 * static_cast<double>(more.constants + more.slots);
      }
      double total = fixed_ + own + static_cast<double>(sum.arena);
      if (on_host_)
        total += static_cast<double>(sum.outputs) + micro_batches_ * bytes_of_batches(search_.training, batches);
      smallest_ = std::min(smallest_, total);
      return total;
    } catch (const Error& error) {
      if (error.kind() != ErrorCode::kMemory) throw;
      return kNever;
    }
  }

  Session& session_;
  const BatchSearch& search_;
  const int micro_batches_;
  bool on_host_;
  double limit_ = 0, fixed_ = 0, smallest_ = kNever;
  int plans_ = 0;
};

}  // namespace

// Where a limit holds, nothing is timed once a run has its memory.
FoundBatch find_largest_batch(Session* session, const BatchSearch& search) {
  session->set_new_choices(Choices::New::kDrafted);
  FoundBatch found = Search(session, search).run();
  session->set_new_choices(Choices::New::kByRule);
  return found;
}

std::string to_text(const FoundBatch& found) {
  return concat("batches of ", found.batch, ", bounded by ", found.bound, ": ", format_bytes(found.planned),
                " planned of ", format_bytes(found.limit), " (", found.plans, found.plans == 1 ? " plan)" : " plans)");
}

}  // namespace onnx_train
