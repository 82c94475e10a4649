// AllReduce, AllGather, Reduce, Broadcast and Await; Send and Receive. Each rank adds up a share of the elements, from
// rank to rank, so that the sum of floats is the same on all and for any number of ranks; a rank alone adds and copies.
// A collective whose result goes to Await is started, and the plan goes on.
#include "kernels/collectives.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"
#include "kernels/dispatch.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/half.h"

namespace onnx_train::cpu {
namespace {

using Sent = std::vector<std::span<const std::byte>>;
using Received = std::vector<std::span<std::byte>>;

template <typename T>
std::span<const std::byte> bytes_of(const T* data, int64_t count) {
  return std::as_bytes(std::span(data, static_cast<size_t>(count)));
}
template <typename T>
std::span<std::byte> writable_bytes_of(T* data, int64_t count) {
  return std::as_writable_bytes(std::span(data, static_cast<size_t>(count)));
}

// The elements that a rank adds up: a piece at a time, so that the workspace does not grow with the tensor.
struct Shares {
  static constexpr int64_t kPiece = int64_t{1} << 20;

  int64_t size, ranks;

  int64_t share() const { return (std::min(size, kPiece) + ranks - 1) / ranks; }
  int64_t begin(int64_t piece, int64_t rank) const { return std::min(size, piece + rank * share()); }
};

// Types that ranks add up.
struct Summable {
  bool contains(DType dtype) const { return is_float_or_double(dtype) || dtype == DType::kBFloat16; }
  template <typename F>
  auto dispatch(DType dtype, F&& f) const {
    return dtype == DType::kBFloat16 ? f(BFloat16{}) : dispatch_float(dtype, f);
  }
};

template <typename T>
using SumOf = std::conditional_t<sizeof(T) == 2, float, T>;

// What the ranks call the collective.
std::string place_of(const Node& node) { return node.attr(kPlace, node.label().c_str()); }

// A kernel whose `begin(launch)` reads what may be overwritten when the plan goes on, and returns the work that
// exchanges, a function of `workspace` bytes of scratch memory. It is done at once, or started.
template <typename F>
std::function<void(const Launch&)> run_or_start(const NodeSpec& spec, size_t workspace, const F& begin) {
  if (!is_awaited(spec.node())) return [begin](const Launch& launch) { begin(launch)(launch.workspace); };
  return [begin, workspace, &ranks = *spec.collectives(), name = spec.node().output()->name()](const Launch& launch) {
    ranks.start(name, [work = begin(launch), workspace] {
      thread_local std::vector<std::byte> scratch;  // of the thread that does one such work after the other
      if (scratch.size() < workspace) scratch.resize(workspace);
      work(scratch.data());
    });
  };
}

// The sums on all ranks, or on `root` alone.
constexpr int64_t kEveryRank = -1;

template <typename T>
struct Reduction {
  Collectives& ranks;
  std::string name;
  int64_t root;
  Shares shares;
  const T *x, *z;
  T* y;
  int64_t active;
  bool x_is_one_number, any_order;
  DType type;

  bool of_rank(size_t r) const { return root == kEveryRank || root == static_cast<int64_t>(r); }

  void operator()(void* scratch) const {
    if (any_order && ranks.sum(name, type, bytes_of(z, shares.size), writable_bytes_of(y, shares.size))) return;
    const auto count = static_cast<size_t>(ranks.size());
    T* const others = static_cast<T*>(scratch);                  // [rank, share]
    T* const received = others + shares.share() * ranks.size();  // [share], of the x of `root`
    const bool has_result = of_rank(static_cast<size_t>(ranks.rank()));
    Sent out(count);
    Received in(count);
    for (int64_t piece = 0; piece < shares.size; piece += shares.share() * ranks.size()) {
      const auto begin = [&](size_t r) { return shares.begin(piece, static_cast<int64_t>(r)); };
      const auto length = [&](size_t r) { return begin(r + 1) - begin(r); };
      const auto rank = static_cast<size_t>(ranks.rank());
      const int64_t own = begin(rank), own_length = length(rank);
      if (root != kEveryRank && !x_is_one_number) {
        for (size_t r = 0; r < count; ++r) {
          out[r] = has_result ? bytes_of(x + begin(r), length(r)) : Sent::value_type();
          in[r] = of_rank(r) ? writable_bytes_of(received, own_length) : Received::value_type();
        }
        ranks.exchange(name, out, in);
      }
      for (size_t r = 0; r < count; ++r) {
        out[r] = bytes_of(z + begin(r), length(r));
        in[r] = writable_bytes_of(others + static_cast<int64_t>(r) * shares.share(), own_length);
      }
      ranks.exchange(name, out, in);
      T* const sum = has_result ? y + own : received;
      const T* const before = root == kEveryRank ? x + own : received;
      add_up(x_is_one_number ? nullptr : before, others, own_length, sum);
      for (size_t r = 0; r < count; ++r) {
        out[r] = of_rank(r) ? bytes_of(sum, own_length) : Sent::value_type();
        in[r] = has_result ? writable_bytes_of(y + begin(r), length(r)) : Received::value_type();
      }
      ranks.exchange(name, out, in);
    }
  }

  // sum = before + the terms of the active ranks, from left to right. Those of 16 bits are added in float32.
  void add_up(const T* before, const T* terms, int64_t length, T* sum) const {
    constexpr int64_t kBlock = 1024;  // sums stay in the cache until they have all terms
    SumOf<T> block[kBlock];
    for (int64_t begin = 0; begin < length; begin += kBlock) {
      const int64_t count = std::min(kBlock, length - begin);
      for (int64_t i = 0; i < count; ++i) block[i] = static_cast<SumOf<T>>(before ? before[begin + i] : *x);
      for (int64_t r = 0; r < active; ++r) {
        const T* const term = terms + r * shares.share() + begin;
        for (int64_t i = 0; i < count; ++i) block[i] += static_cast<SumOf<T>>(term[i]);
      }
      for (int64_t i = 0; i < count; ++i) sum[begin + i] = static_cast<T>(block[i]);
    }
  }
};

template <typename T>
std::function<void(const Launch&)> reduce(const NodeSpec& spec, int64_t root, size_t workspace) {
  Collectives& ranks = *spec.collectives();
  return run_or_start(
      spec, workspace,
      [=, &ranks, shares = Shares{spec.out_size(), ranks.size()}, name = place_of(spec.node()),
       is_awaited = is_awaited(spec.node()), is_one = has_one_number_before(spec),
       any_order = spec.node().attr(kAnyOrder, 0) != 0, type = spec.out_type()](const Launch& launch) {
        Reduction<T> work{
            ranks,  name,      root, shares, launch.in<T>(0), launch.in<T>(1), launch.out<T>(), *launch.in<int64_t>(2),
            is_one, any_order, type};
        const bool reads = !is_one && work.of_rank(static_cast<size_t>(ranks.rank()));
        if (is_awaited && reads && work.x != work.y)
          work.x = std::copy(work.x, work.x + shares.size, work.y) - shares.size;
        return work;
      });
}

Prepared prepare_reduce(const NodeSpec& spec) {
  const int64_t size = spec.out_size();
  const bool is_one = has_one_number_before(spec);
  Prepared prepared;
  if (!is_one) prepared.in_place = {{0, 0}};
  if (spec.collectives()) {
    const int64_t root = spec.node().op() == "Reduce" ? root_of(spec) : kEveryRank;
    const Shares shares{size, spec.collectives()->size()};
    prepared.workspace = static_cast<size_t>(shares.share() * (shares.ranks + 1)) * size_of(spec.out_type());
    prepared.run =
        Summable{}.dispatch(spec.out_type(), [&]<typename T>(T) { return reduce<T>(spec, root, prepared.workspace); });
  } else {
    prepared.run = Summable{}.dispatch(spec.out_type(), [=]<typename T>(T) -> std::function<void(const Launch&)> {
      return [=](const Launch& launch) {
        for (int64_t i = 0; i < size; ++i)
          launch.out<T>()[i] = static_cast<T>(static_cast<SumOf<T>>(launch.in<T>(0)[is_one ? 0 : i]) +
                                              static_cast<SumOf<T>>(launch.in<T>(1)[i]));
      };
    });
  }
  return prepared;
}

// Above this, `root` sends each rank a share and the ranks send theirs to each other, so that no rank sends more than
// twice the tensor; below, the number of messages counts.
constexpr int64_t kWholeBroadcast = 1 << 15;

void broadcast(Collectives* ranks, const std::string& name, int64_t root, std::span<std::byte> data) {
  std::byte* const y = data.data();
  const auto bytes = static_cast<int64_t>(data.size());
  const bool is_root = ranks->rank() == root;
  const auto count = static_cast<size_t>(ranks->size()), from = static_cast<size_t>(root);
  const int64_t share = bytes > kWholeBroadcast ? (bytes + ranks->size() - 1) / ranks->size() : bytes;
  const auto begin = [&](size_t r) { return std::min(bytes, share * static_cast<int64_t>(r)); };
  const auto part = [&](size_t r) {  // of what `root` sends to rank r
    return share == bytes ? std::pair(int64_t{0}, bytes) : std::pair(begin(r), begin(r + 1) - begin(r));
  };
  const auto [own, own_bytes] = part(static_cast<size_t>(ranks->rank()));
  Sent out(count);
  Received in(count);
  for (size_t r = 0; r < count && is_root; ++r) {
    if (r != from) out[r] = bytes_of(y + part(r).first, part(r).second);
  }
  if (!is_root) in[from] = writable_bytes_of(y + own, own_bytes);
  ranks->exchange(name, out, in);
  if (share == bytes) return;
  for (size_t r = 0; r < count; ++r) {
    const bool mine = r == static_cast<size_t>(ranks->rank());
    out[r] = mine || r == from ? Sent::value_type() : bytes_of(y + own, own_bytes);
    in[r] = mine || is_root ? Received::value_type() : writable_bytes_of(y + part(r).first, part(r).second);
  }
  ranks->exchange(name, out, in);
}

Prepared prepare_broadcast(const NodeSpec& spec) {
  const int64_t bytes = spec.out_size() * static_cast<int64_t>(size_of(spec.out_type()));
  Collectives* const ranks = spec.collectives();
  const int64_t root = ranks ? root_of(spec) : 0;
  Prepared prepared;
  prepared.in_place = {{0, 0}};
  const auto begin = [=](const Launch& launch) {
    auto* const y = launch.out<std::byte>();
    const auto* const x = launch.in<std::byte>(0);
    if ((!ranks || ranks->rank() == root) && y != x && bytes > 0) std::memcpy(y, x, static_cast<size_t>(bytes));
    return y;
  };
  if (!ranks) {
    prepared.run = [=](const Launch& launch) { begin(launch); };
    return prepared;
  }
  prepared.run = run_or_start(spec, 0, [=, name = place_of(spec.node())](const Launch& launch) {
    return [=, y = begin(launch)](void*) { broadcast(ranks, name, root, {y, static_cast<size_t>(bytes)}); };
  });
  return prepared;
}

Prepared prepare_await(const NodeSpec& spec) {
  const auto bytes = static_cast<size_t>(spec.out_size()) * size_of(spec.out_type());
  Prepared prepared;
  prepared.in_place = {{0, 0}};
  prepared.run = [bytes, ranks = spec.collectives(), name = spec.node().input(0)->name()](const Launch& launch) {
    if (ranks) ranks->wait(name);
    if (launch.outputs[0] != launch.inputs[0] && bytes > 0) std::memcpy(launch.outputs[0], launch.inputs[0], bytes);
  };
  return prepared;
}

Prepared prepare_all_gather(const NodeSpec& spec) {
  const auto count = static_cast<size_t>(spec.out_shape()[0]);
  const size_t bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type());
  Collectives* const ranks = spec.collectives();
  if (ranks && static_cast<size_t>(ranks->size()) != count)
    fail("it gathers from ", count, " ranks, and there are ", ranks->size());
  return {.run = [=, name = place_of(spec.node())](const Launch& launch) {
    auto* const y = launch.out<std::byte>();
    if (!ranks) {
      for (size_t r = 0; r < count; ++r) std::memcpy(y + r * bytes, launch.inputs[0], bytes);
      return;
    }
    Received in(count);
    for (size_t r = 0; r < count; ++r) in[r] = {y + r * bytes, bytes};
    ranks->exchange(name, Sent(count, {launch.in<std::byte>(0), bytes}), in);
  }};
}

Prepared prepare_send(const NodeSpec& spec) {
  const auto bytes = static_cast<size_t>(spec.in_size()) * size_of(spec.in_type());
  Collectives* const ranks = spec.collectives();
  const int to = ranks ? rank_of(spec, "to") : 0;
  const bool has_copy = spec.num_outputs() > 1 && spec.has_output(1);
  return {.run = [=, name = place_of(spec.node())](const Launch& launch) {
    if (ranks) ranks->send(name, to, {launch.in<std::byte>(0), bytes});
    *launch.out<bool>() = true;
    if (has_copy && bytes > 0) std::memcpy(launch.outputs[1], launch.inputs[0], bytes);
  }};
}

Prepared prepare_receive(const NodeSpec& spec) {
  const size_t element = size_of(spec.out_type());
  const auto bytes = static_cast<size_t>(spec.out_size()) * element;
  Collectives* const ranks = spec.collectives();
  const int from = ranks ? rank_of(spec, "from") : 0;
  return {.run = [=, name = place_of(spec.node())](const Launch& launch) {
    auto* const y = launch.out<std::byte>();
    if (ranks) return ranks->receive(name, from, {y, bytes});
    for (size_t at = 0; at < bytes; at += element) std::memcpy(y + at, launch.inputs[0], element);
  }};
}

}  // namespace

std::vector<Kernel> collective_kernels() {
  const auto one_type = [](const NodeSpec& spec) { return Summable{}.contains(spec.out_type()) && spec.one_type(2); };
  const auto any = [](const NodeSpec&) { return true; };
  return {{"AllReduce", one_type, prepare_reduce, kDomain}, {"Reduce", one_type, prepare_reduce, kDomain},
          {"Broadcast", any, prepare_broadcast, kDomain},   {"AllGather", any, prepare_all_gather, kDomain},
          {"Await", any, prepare_await, kDomain},           {"Send", any, prepare_send, kDomain},
          {"Receive", any, prepare_receive, kDomain}};
}

}  // namespace onnx_train::cpu
