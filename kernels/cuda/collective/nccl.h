// NCCL, which sums and copies between the GPUs of ranks. The library is loaded when ranks first use it; a training on
// one GPU does not need it.
#pragma once

#include <nccl.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/collectives.h"
#include "kernels/cuda/support/runtime.h"

namespace onnx_train::cuda {

// The library's function of this name; null where the library, or the function, is not there.
void* nccl_function(const char* name);
// The same; throws Error that says what to install.
void* required_nccl_function(const char* name);
#define NCCL(name) reinterpret_cast<decltype(name)*>(onnx_train::cuda::required_nccl_function(#name))

// GPUs of some ranks, each rank with the device that is current when it is made, and a stream for their exchanges.
//
// What one stage of a pipeline sends to another has such an object of its own. NCCL does what a communicator is told in
// its order, and a send lasts until the other rank receives: whatever came after it would wait, too. Even with one
// communicator for each direction stages can wait for each other for ever, where they exchange with others than their
// neighbours.
//
// NCCL connects two ranks at their first message, and the host waits for the other rank then. All stages come to the
// first messages of a direction in one order, and that is in the rehearsal of a plan, not while it is captured.
//
// All ranks together own it (Collectives::all); one thread at a time uses it. Functions throw Error that names NCCL's
// call.
class NcclRanks : public Attachment {
 public:
  // Connects the ranks, unless they are. All of them call this at the same place.
  static void connect(Collectives& ranks);
  static std::shared_ptr<NcclRanks> of(Collectives& ranks);
  // The same for what rank `from` of these sends to rank `to`.
  static void connect(Collectives& ranks, int from, int to);
  static std::shared_ptr<NcclRanks> of(Collectives& ranks, int from, int to);

  // `members` are their numbers among all ranks, in ascending order.
  NcclRanks(Collectives& all, const std::vector<int>& members, int device);
  ~NcclRanks() override;

  int rank() const { return rank_; }

  // Enqueues what `enqueue` does with the communicator and the stream, after the work of `main`; `name` is for `join`.
  void start(cudaStream_t main, const std::string& name,
             const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& enqueue);
  // The later work of `main` comes after what was started last under this name.
  void join(cudaStream_t main, const std::string& name);

  void check() override;
  void abort() noexcept override;

 private:
  const int device_, rank_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  Event begin_;
  std::map<std::string, Event> ends_;
};

}  // namespace onnx_train::cuda
