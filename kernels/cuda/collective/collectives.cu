// AllReduce, Reduce, Broadcast, AllGather and Await; Send and Receive, on GPUs. NCCL sums in an order of its own, which
// is the same in every run on the same machines. A collective whose result goes to Await runs on the ranks' stream,
// beside what follows.
#include <cstring>

#include "kernels/cuda/collective/nccl.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train::cuda {
namespace {

// What this rank adds to the sum: its z where it has a batch, and on one rank the sum before.
template <typename T>
__global__ void begin_sum(int64_t n, const T* x, int64_t x_stride, const T* __restrict__ z, const int64_t* active,
                          int64_t rank, bool has_sum, T* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  Computed<T> sum = rank < *active ? widened(z[i]) : Computed<T>(0);
  if (has_sum) sum += widened(x[i * x_stride]);
  y[i] = math::convert<T>(sum);
}

ncclDataType_t nccl_type(float) { return ncclFloat32; }
ncclDataType_t nccl_type(double) { return ncclFloat64; }
ncclDataType_t nccl_type(BFloat16) { return ncclBfloat16; }
ncclDataType_t nccl_type(__half) { return ncclFloat16; }

using Exchange = std::function<ncclResult_t(ncclComm_t, cudaStream_t, const Launch&)>;

// Those that exchange in a collective. `ranks` are those of its mesh axis.
std::shared_ptr<NcclRanks> ranks_of(const Node& collective, Collectives& ranks) {
  const auto number = [&](const char* attribute) { return static_cast<int>(collective.attr(attribute, 0)); };
  if (collective.is("Send", kDomain)) return NcclRanks::of(ranks, ranks.rank(), number("to"));
  if (collective.is("Receive", kDomain)) return NcclRanks::of(ranks, number("from"), ranks.rank());
  return NcclRanks::of(ranks);
}

// A kernel that exchanges after `begin`; where its result is awaited, what follows does not wait for it.
Prepared prepare_exchange(const NodeSpec& spec, std::function<void(const Launch&)> begin, Exchange exchange) {
  const auto ranks = ranks_of(spec.node(), *spec.collectives());
  return {.run =
              [=, begin = std::move(begin), exchange = std::move(exchange), name = spec.node().output()->name(),
               awaited = is_awaited(spec.node())](const Launch& launch) {
                if (begin) begin(launch);
                ranks->start(stream_of(launch), name, [&](ncclComm_t communicator, cudaStream_t stream) {
                  return exchange(communicator, stream, launch);
                });
                if (!awaited) ranks->join(stream_of(launch), name);
              },
          .in_place = {{0, 0}}};
}

Prepared prepare_reduce(const NodeSpec& spec) {
  const int64_t size = spec.out_size();
  const bool has_root = spec.node().op() == "Reduce";
  const int root = has_root && spec.collectives() ? root_of(spec) : 0;
  const int rank = spec.collectives() ? spec.collectives()->rank() : 0;
  const bool is_one = has_one_number_before(spec);
  return dispatch_stored(spec.out_type(), [&]<typename T>(T zero) -> Prepared {
    const auto begin = [=](const Launch& launch) {
      enqueue_each(launch, "begin_sum", begin_sum<T>, size, launch.in<T>(0), int64_t{is_one ? 0 : 1}, launch.in<T>(1),
                   launch.in<int64_t>(2), int64_t{rank}, rank == root, launch.out<T>());
    };
    Prepared alone{.run = begin, .in_place = {{0, 0}}};
    if (is_one) alone.in_place.clear();
    if (!spec.collectives()) return alone;
    const auto type = nccl_type(zero);
    const auto count = static_cast<size_t>(size);
    Prepared prepared =
        prepare_exchange(spec, begin, [=](ncclComm_t communicator, cudaStream_t stream, const Launch& launch) {
          T* const y = launch.out<T>();
          static const auto all_reduce = NCCL(ncclAllReduce);
          static const auto reduce = NCCL(ncclReduce);
          return has_root ? reduce(y, y, count, type, ncclSum, root, communicator, stream)
                          : all_reduce(y, y, count, type, ncclSum, communicator, stream);
        });
    prepared.in_place = alone.in_place;
    return prepared;
  });
}

void copy(const Launch& launch, int output, size_t bytes) {
  if (launch.outputs[output] == launch.inputs[0] || bytes == 0) return;
  check(cudaMemcpyAsync(launch.outputs[output], launch.inputs[0], bytes, cudaMemcpyDeviceToDevice, stream_of(launch)),
        "cudaMemcpyAsync");
}

Prepared prepare_broadcast(const NodeSpec& spec) {
  const size_t bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  if (!spec.collectives()) return {.run = [=](const Launch& launch) { copy(launch, 0, bytes); }, .in_place = {{0, 0}}};
  const int root = root_of(spec);
  const bool is_root = spec.collectives()->rank() == root;
  const auto begin = [=](const Launch& launch) {
    if (is_root) copy(launch, 0, bytes);
  };
  return prepare_exchange(spec, begin, [=](ncclComm_t communicator, cudaStream_t stream, const Launch& launch) {
    static const auto broadcast = NCCL(ncclBroadcast);
    return broadcast(launch.outputs[0], launch.outputs[0], bytes, ncclUint8, root, communicator, stream);
  });
}

Prepared prepare_all_gather(const NodeSpec& spec) {
  const int64_t count = spec.out_shape()[0];
  const size_t bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type());
  if (!spec.collectives()) {
    return {.run = [=](const Launch& launch) {
      for (int64_t r = 0; r < count && bytes > 0; ++r) {
        check(cudaMemcpyAsync(launch.out<std::byte>() + static_cast<size_t>(r) * bytes, launch.inputs[0], bytes,
                              cudaMemcpyDeviceToDevice, stream_of(launch)),
              "cudaMemcpyAsync");
      }
    }};
  }
  if (spec.collectives()->size() != count)
    fail("it gathers from ", count, " ranks, and there are ", spec.collectives()->size());
  Prepared prepared =
      prepare_exchange(spec, {}, [=](ncclComm_t communicator, cudaStream_t stream, const Launch& launch) {
        static const auto all_gather = NCCL(ncclAllGather);
        return all_gather(launch.inputs[0], launch.outputs[0], bytes, ncclUint8, communicator, stream);
      });
  prepared.in_place.clear();
  return prepared;
}

// Sends the copy, so that x may be overwritten. (An Await of x itself would not do: lowering may give each reader of a
// value a conversion of its own.) Without one, what follows waits until x has arrived. A pair are ranks 0 and 1.
Prepared prepare_send(const NodeSpec& spec) {
  const size_t bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type());
  const bool has_copy = spec.num_outputs() > 1 && spec.has_output(1);
  const auto begin = [=](const Launch& launch) {
    check(cudaMemsetAsync(launch.outputs[0], 1, sizeof(bool), stream_of(launch)), "cudaMemsetAsync");
    if (has_copy) copy(launch, 1, bytes);
  };
  if (!spec.collectives()) return {.run = begin};
  rank_of(spec, "to");
  const int peer = 1 - ranks_of(spec.node(), *spec.collectives())->rank();
  Prepared prepared =
      prepare_exchange(spec, begin, [=](ncclComm_t communicator, cudaStream_t stream, const Launch& launch) {
        static const auto send = NCCL(ncclSend);
        const void* const x = has_copy ? launch.outputs[1] : launch.inputs[0];
        return bytes == 0 ? ncclSuccess : send(x, bytes, ncclUint8, peer, communicator, stream);
      });
  prepared.in_place.clear();
  return prepared;
}

// A rank alone has x in all elements.
__global__ void repeat_bytes(int64_t bytes, int64_t element, const uint8_t* __restrict__ x, uint8_t* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < bytes) y[i] = x[i % element];
}

Prepared prepare_receive(const NodeSpec& spec) {
  const auto element = static_cast<int64_t>(size_of(spec.out_type()));
  const auto bytes = static_cast<size_t>(spec.out_size() * element);
  if (!spec.collectives()) {
    return {.run = [=](const Launch& launch) {
      enqueue_each(launch, "repeat_bytes", repeat_bytes, static_cast<int64_t>(bytes), element, launch.in<uint8_t>(0),
                   launch.out<uint8_t>());
    }};
  }
  rank_of(spec, "from");
  const int peer = 1 - ranks_of(spec.node(), *spec.collectives())->rank();
  Prepared prepared =
      prepare_exchange(spec, {}, [=](ncclComm_t communicator, cudaStream_t stream, const Launch& launch) {
        static const auto receive = NCCL(ncclRecv);
        return bytes == 0 ? ncclSuccess : receive(launch.outputs[0], bytes, ncclUint8, peer, communicator, stream);
      });
  prepared.in_place.clear();
  return prepared;
}

Prepared prepare_await(const NodeSpec& spec) {
  const size_t bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  const Node* const started = spec.node().input(0)->producer();
  const auto ranks = spec.collectives() && started
                         ? ranks_of(*started, *spec.collectives()->along(started->attr(kMeshAxis, "")))
                         : nullptr;
  return {.run =
              [=, name = spec.node().input(0)->name()](const Launch& launch) {
                if (ranks) ranks->join(stream_of(launch), name);
                copy(launch, 0, bytes);
              },
          .in_place = {{0, 0}}};
}

}  // namespace

std::vector<Kernel> collective_kernels() {
  const auto one_float = [](const NodeSpec& spec) { return is_stored(spec.out_type()) && spec.one_type(2); };
  const auto any = [](const NodeSpec&) { return true; };
  return {{"AllReduce", one_float, prepare_reduce, kDomain},
          {"Reduce", one_float, prepare_reduce, kDomain},
          {"Broadcast", any, prepare_broadcast, kDomain},
          {"AllGather", any, prepare_all_gather, kDomain},
          {"Await", any, prepare_await, kDomain},
          {"Send", any, prepare_send, kDomain},
          {"Receive", any, prepare_receive, kDomain}};
}

}  // namespace onnx_train::cuda
