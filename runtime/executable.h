// A plan at fixed addresses of its device: the pointers that its kernels see, its constants, slots for what crosses its
// border, the word for faults. The addresses of inputs, outputs and states stay the same as long as it lives, so that a
// device may record a run once and replay it; a new arena, which the session may bind between runs, makes it record
// again. On a device that uses the host's memory, inputs are read where the caller has them.
//
// Made by a session for one of its streams, which outlives it. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "runtime/plan.h"

namespace onnx_train {

class Executable {
 public:
  // Uploads the constants. Throws Error when the device has too little memory.
  Executable(std::unique_ptr<Plan> plan, Device& device, Stream& stream);
  ~Executable();
  Executable(const Executable&) = delete;

  Plan& plan() { return *plan_; }
  const Plan& plan() const { return *plan_; }

  // Memory of the device: arena_bytes() of the plan, and each state. Nothing may be under way.
  void bind_arena(void* arena);
  void bind_state(size_t i, void* data);

  // The value of an input for the next run, which reads it: `data` must stay as it is until `wait`.
  void set_input(size_t i, const void* data);
  // Enqueues a run: all nodes in order, then the states that are not updated in place. On a device that uses the host's
  // memory it ends at the first fault.
  void run();
  // Copies the outputs to the host and waits. Throws Error for a fault, which names the node; all states are then as
  // they were before the run.
  void wait();
  // By output of the plan: host memory that the next run changes.
  const std::vector<Tensor>& outputs() const { return outputs_; }

 private:
  struct Call {
    size_t inputs, outputs, workspace;  // positions in `table_`
  };
  struct Entry {
    size_t position;  // in `table_`
    size_t offset;    // bytes after the buffer's begin
  };

  void make_table();
  void upload_constants();
  void make_slots();
  void free_memory();
  void set(size_t buffer, void* address);
  Launch launch(size_t step);
  void enqueue();
  void run_profiled();
  void run_guarded();
  [[noreturn]] void refuse(const Fault& fault);

  std::unique_ptr<Plan> plan_;
  Device& device_;
  Stream& stream_;
  std::vector<void*> table_;
  std::vector<Call> calls_;                                             // by step
  std::vector<std::vector<Entry>> entries_;                             // by buffer: where its address is in `table_`
  std::vector<void*> addresses_;                                        // by buffer
  std::vector<Transfer> commits_;                                       // the plan's copies
  std::vector<size_t> input_buffers_, output_buffers_, state_buffers_;  // by port; kNone where absent
  std::vector<Tensor> outputs_;
  char* constants_ = nullptr;
  char* slots_ = nullptr;  // inputs, outputs and the fault, on devices that do not use the host's memory
  Fault host_fault_;
  Fault* fault_ = &host_fault_;
  char* arena_ = nullptr;
  std::unique_ptr<Recording> recording_;
  bool is_warm_ = false;  // it has run at these addresses
};

}  // namespace onnx_train
