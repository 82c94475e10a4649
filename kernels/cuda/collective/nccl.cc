#include "kernels/cuda/collective/nccl.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {

void* required_nccl_function(const char* name) {
  void* const address = nccl_function(name);
  if (!address) {
    fail_as(ErrorCode::kDevice, "ranks on GPUs exchange through NCCL, and libnccl.so.2",
            nccl_function("ncclGetVersion") ? concat(" lacks ", name) : " cannot be loaded",
            "; install NCCL 2.19 or newer (pip install nvidia-nccl-cu13), and name its folder in LD_LIBRARY_PATH");
  }
  return address;
}

namespace {

void expect_success(ncclResult_t status, const char* call, ncclComm_t communicator = nullptr) {
  if (status == ncclSuccess) return;
  const char* const more = NCCL(ncclGetLastError)(communicator);
  fail_as(ErrorCode::kDevice, "NCCL: ", call, ": ", NCCL(ncclGetErrorString)(status), more && *more ? ": " : "",
          more ? more : "", "; NCCL_DEBUG=INFO says more");
}

// The first member's, on all of them. `rank` is this one's number among them.
ncclUniqueId shared_id(Collectives& all, const std::vector<int>& members, int rank) {
  ncclUniqueId id = {};
  // A rank without the library says so before the others wait for it.
  const auto get = NCCL(ncclGetUniqueId);
  if (rank == 0) expect_success(get(&id), "ncclGetUniqueId");
  std::vector<std::span<const std::byte>> out(members.size());
  std::vector<std::span<std::byte>> in(members.size());
  const std::span<ncclUniqueId> ids(&id, 1);
  if (rank == 0) {
    std::fill(out.begin() + 1, out.end(), std::as_bytes(ids));
  } else {
    in[0] = std::as_writable_bytes(ids);
  }
  all.exchange_among(members, "NCCL's id", out, in);
  return id;
}

std::vector<int> members_of(Collectives& ranks) {
  std::vector<int> members;
  for (int r = 0; r < ranks.size(); ++r) members.push_back(ranks.number(r));
  return members;
}

std::string name_of(Collectives& ranks) {
  std::string name = concat("NCCL on cuda:", current_device(), " between");
  for (const int member : members_of(ranks)) name += concat(" ", member);
  return name;
}

std::string name_of(Collectives& ranks, int from, int to) {
  return concat("NCCL on cuda:", current_device(), " from ", ranks.number(from), " to ", ranks.number(to));
}

void attach(Collectives& all, const std::string& name, const std::vector<int>& members) {
  if (!all.attachments.contains(name))
    all.attachments.emplace(name, std::make_shared<NcclRanks>(all, members, current_device()));
}

// NCCL waits for all ranks for as long as it takes: a thread does, so that this one hears of ranks that are gone, and
// leaves it behind.
ncclComm_t connected(Collectives& all, const ncclUniqueId& id, int device, int rank, int size) {
  struct Connected {
    ncclResult_t status = ncclSuccess;
    ncclComm_t communicator = nullptr;
  };
  std::promise<Connected> promise;
  std::future<Connected> future = promise.get_future();
  std::thread([=, function = NCCL(ncclCommInitRank), promise = std::move(promise)]() mutable {
    Connected made;
    made.status =
        cudaSetDevice(device) == cudaSuccess ? function(&made.communicator, size, id, rank) : ncclUnhandledCudaError;
    promise.set_value(made);
  }).detach();
  while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) all.check();
  const Connected made = future.get();
  expect_success(made.status, "ncclCommInitRank");
  return made.communicator;
}

}  // namespace

void NcclRanks::connect(Collectives& ranks) { attach(ranks.all(), name_of(ranks), members_of(ranks)); }

std::shared_ptr<NcclRanks> NcclRanks::of(Collectives& ranks) {
  return std::static_pointer_cast<NcclRanks>(ranks.all().attachments.at(name_of(ranks)));
}

void NcclRanks::connect(Collectives& ranks, int from, int to) {
  const auto [first, second] = std::minmax({ranks.number(from), ranks.number(to)});
  attach(ranks.all(), name_of(ranks, from, to), {first, second});
}

std::shared_ptr<NcclRanks> NcclRanks::of(Collectives& ranks, int from, int to) {
  return std::static_pointer_cast<NcclRanks>(ranks.all().attachments.at(name_of(ranks, from, to)));
}

NcclRanks::NcclRanks(Collectives& all, const std::vector<int>& members, int device)
    : device_(device), rank_(static_cast<int>(std::ranges::find(members, all.rank()) - members.begin())) {
  communicator_ = connected(all, shared_id(all, members, rank_), device, rank_, static_cast<int>(members.size()));
  try {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  } catch (...) {
    abort();
    throw;
  }
}

NcclRanks::~NcclRanks() {
  int before = device_;
  if (cudaGetDevice(&before) == cudaSuccess && before != device_) cudaSetDevice(device_);
  if (communicator_) NCCL(ncclCommDestroy)(communicator_);
  cudaStreamDestroy(stream_);
  ends_.clear();
  restore_device(before);
}

void NcclRanks::start(cudaStream_t main, const std::string& name,
                      const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& enqueue) {
  if (!communicator_) fail_as(ErrorCode::kDevice, "NCCL: the ranks' communicator has been aborted");
  cuda::check(cudaEventRecord(begin_.get(), main), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(stream_, begin_.get(), 0), "cudaStreamWaitEvent");
  expect_success(enqueue(communicator_, stream_), name.c_str(), communicator_);
  cuda::check(cudaEventRecord(ends_[name].get(), stream_), "cudaEventRecord");
}

void NcclRanks::join(cudaStream_t main, const std::string& name) {
  cuda::check(cudaStreamWaitEvent(main, ends_.at(name).get(), 0), "cudaStreamWaitEvent");
}

void NcclRanks::check() {
  if (!communicator_) return;
  ncclResult_t status = ncclSuccess;
  expect_success(NCCL(ncclCommGetAsyncError)(communicator_, &status), "ncclCommGetAsyncError", communicator_);
  expect_success(status, "an exchange", communicator_);
}

void NcclRanks::abort() noexcept {
  if (const ncclComm_t communicator = std::exchange(communicator_, nullptr)) {
    if (const auto abort = reinterpret_cast<decltype(ncclCommAbort)*>(nccl_function("ncclCommAbort")))
      abort(communicator);
  }
}

}  // namespace onnx_train::cuda
