// What ranks compute together (onnx_passes/distribution). The bodies are what one rank alone computes.
// `after` is what an earlier one has computed, which orders them (order_collectives.h).
#include "onnx_passes/functions/functions.h"

namespace onnx_train {
namespace {

// y = x + z(0) + z(1) + ..., from left to right, over the first `active` ranks: as one rank adds batch after batch. x
// has z's shape, or is one number.
constexpr const char* kAllReduce = R"(
AllReduce (x, z, active, after) => (y)
{
  y = Add (x, z)
})";

// y[r] is the x of rank r.
constexpr const char* kAllGather = R"(
AllGather <ranks> (x, after) => (y)
{
  first = Constant <value = int64[1] {0}> ()
  one = Unsqueeze (x, first)
  size = Constant <value_int: int = @ranks> ()
  minus = Constant <value = int64[1] {-1}> ()
  sizes = Reshape (size, minus)
  others = Shape <start = 1> (one)
  shape = Concat <axis = 0> (sizes, others)
  y = Expand (one, shape)
})";

// The same sum as AllReduce, on rank `root` alone; its x is read there, and the results of the others are not.
constexpr const char* kReduce = R"(
Reduce <root> (x, z, active, after) => (y)
{
  y = Add (x, z)
})";

// The x of rank `root`. The others give any x of its type.
constexpr const char* kBroadcast = R"(
Broadcast <root> (x, after) => (y)
{
  y = Identity (x)
})";

// y, which a collective computes while other nodes run, when it is there. The collective reads z until then.
constexpr const char* kAwait = R"(
Await (y, z, after) => (r)
{
  r = Identity (y)
})";

// Gives x to rank `to`, and does not wait until it has it. A device that only begins to send reads the copy `held`,
// which an Await of `sent` keeps.
constexpr const char* kSend = R"(
Send <to> (x, after) => (sent, held)
{
  sent = Constant <value = bool {1}> ()
  held = Identity (x)
})";

// What rank `from` sends to this one, of x's element type. A rank alone has x in all elements.
constexpr const char* kReceive = R"(
Receive <from> (x, shape, after) => (y)
{
  y = Expand (x, shape)
})";

}  // namespace

std::vector<FunctionRow> collective_functions() {
  return {function("AllReduce", kAllReduce), function("AllGather", kAllGather), function("Reduce", kReduce),
          function("Broadcast", kBroadcast), function("Await", kAwait),         function("Send", kSend),
          function("Receive", kReceive)};
}

}  // namespace onnx_train
