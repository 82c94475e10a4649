// A plan with fixed addresses on its device: the pointers that its kernels read, its constants, slots for inputs and
// outputs, and the fault word. A device with its own memory may record a run once and replay it, because the slots do
// not move; binding a new arena between runs causes a new recording. On a device that uses host memory, kernels read
// inputs and write outputs in the caller's memory.
//
// A session owns it and the stream that it uses, which must outlive it. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/plan/plan.h"

namespace onnx_train {

// The bytes that an executable of the plan allocates on the device: for constants that are not read where they are
// stored, and for inputs and outputs, which a device that uses host memory reads and writes in the caller's.
size_t copied_constants(const Plan& plan, const Device& device);
size_t slot_bytes(const Plan& plan, const Device& device);

class Executable {
 public:
  // Where inputs and outputs are: on a device with memory of its own, in slots that the executable has, and to and from
  // which it copies; or in device memory to which the caller binds each of them.
  enum class Ports { kSlots, kBound };
  // Uploads the constants. Runs report faults to `fault`, which is in device memory. Throws Error if the device has too
  // little memory.
  Executable(std::unique_ptr<Plan> plan, Device& device, Stream& stream, Fault* fault, Ports ports = Ports::kSlots);
  ~Executable();
  Executable(const Executable&) = delete;

  Plan& plan() { return *plan_; }
  const Plan& plan() const { return *plan_; }

  // Sets the device memory of the arena (the plan's arena_bytes()) and of each state. No work may be in progress.
  void bind_arena(void* arena);
  void bind_state(size_t i, void* data);

  // Sets an input for the next run; type and shape must be those of the plan's input. A device that uses host memory
  // reads it in place. Others copy it: from host memory before the call returns, from device memory
  // (Tensor::is_on_device) in the order of the stream.
  void set_input(size_t i, const Tensor& value);
  // Enqueues a run: all nodes in order, then the copies of states that are not updated in place. Writes the plan's
  // outputs to `outputs` and the fault word after the run to `fault`; both are host memory that must live until the
  // stream has completed the run. A run that begins or ends with a fault changes no state. On a device that uses host
  // memory the run stops at the first fault.
  void run(const std::vector<Tensor>& outputs, Fault* fault);
  // The same with addresses in device memory in the place of tensors, for Ports::kBound or on a device that uses host
  // memory: run_bound enqueues a run that reads the inputs and writes the outputs that were set last, and reports a
  // fault where the constructor says.
  void bind_input(size_t i, const void* data) { set(input_buffers_[i], const_cast<void*>(data)); }
  void bind_output(size_t i, void* data) { set(output_buffers_[i], data); }
  void run_bound();
  // On a device that uses host memory, makes a loss that is not finite a fault of the node that computes it: the run
  // stops there, before any update. Otherwise, or without a loss, does nothing.
  void refuse_non_finite_loss();
  // `wait` waits for the stream after a rehearsal. A recording waits for it by itself, but other ranks may be gone.
  void wait_after_rehearsal(std::function<void()> wait) { wait_ = std::move(wait); }
  // Throws Error for a fault of a run of this plan: it names the node, the value, and the allowed values.
  [[noreturn]] void refuse(const Fault& found) const;

 private:
  struct Call {
    size_t inputs, outputs, workspace;  // positions in `table_`
  };
  struct Entry {
    size_t position;  // position in `table_`
    size_t offset;    // offset in the buffer
  };

  void make_table();
  void upload_constants();
  void make_slots();
  void free_memory();
  void set(size_t buffer, void* address);
  Launch launch(size_t step, Fault* fault);
  void run_kernel(size_t step, const Launch& launch);
  void run_step(size_t step, Fault* fault);
  void check_loss(size_t step, Fault* fault) const;
  void rehearse();
  void collect_commits();
  void enqueue(Fault* fault);
  void run_profiled();
  void run_guarded();
  void run_watched();

  std::unique_ptr<Plan> plan_;
  Device& device_;
  Stream& stream_;
  std::vector<void*> table_;
  std::vector<Call> calls_;                  // by step
  std::vector<std::vector<Entry>> entries_;  // entries of `table_` that hold the address of each buffer
  std::vector<void*> addresses_;             // by buffer
  std::vector<Transfer> commits_;            // the copies of the plan
  std::vector<size_t> input_buffers_, output_buffers_, state_buffers_;  // by port; kNoBuffer if absent
  char* constants_ = nullptr;
  std::vector<Tensor> shared_;  // constants that all plans read in one copy
  char* slots_ = nullptr;       // inputs and outputs, on devices that do not use host memory
  Fault* const fault_;
  Fault* rehearsal_ = nullptr;  // always set; on devices that do not use host memory
  char* arena_ = nullptr;
  std::unique_ptr<Recording> recording_;
  std::function<void()> wait_;                 // after a rehearsal
  bool is_rehearsed_ = false;                  // whether rehearse() has run
  size_t loss_step_ = SIZE_MAX, loss_at_ = 0;  // the node that computes the loss, and its position in `table_`
  DType loss_type_ = DType::kFloat;
};

}  // namespace onnx_train
