// What ranks compute together (onnx_passes/distribution). The bodies are what one rank alone computes.
// `after` is what an earlier one has computed, which orders them (order_collectives.h).
#include "onnx_passes/functions/body.h"

namespace onnx_train {

std::vector<FunctionRow> collective_functions() {
  return {
      // y = x + z(0) + z(1) + ..., from left to right, over the first `active` ranks: as one rank adds batch after
      // batch. x has the shape of z, or is one number.
      function("AllReduce (x, z, active, after) => (y)", [](Term x, Term z, Term, Term) { return x + z; }),
      // y[r] is the x of rank r.
      function("AllGather <ranks> (x, after) => (y)",
               [](Body& f, Term x, Term) {
                 const Term one = unsqueeze(x, {0}), size = f.op("Constant", {}, "value_int: int = @ranks");
                 return expand(one, concat({reshape(size, {-1}), shape_from(one, 1)}, 0));
               }),
      // The same sum as AllReduce, on rank `root` alone; its x is read there, and the results of the others are not.
      function("Reduce <root> (x, z, active, after) => (y)", [](Term x, Term z, Term, Term) { return x + z; }),
      // The x of rank `root`. The others give any x of its type.
      function("Broadcast <root> (x, after) => (y)", [](Term x, Term) { return x; }),
      // y, which a collective computes while other nodes run, when it is there. The collective reads z until then.
      function("Await (y, z, after) => (r)", [](Term y, Term, Term) { return y; }),
      // Gives x to rank `to`, and does not wait until it has it. A device that only begins to send reads the copy
      // `held`, which an Await of `sent` keeps.
      function("Send <to> (x, after) => (sent, held)",
               [](Body& f, Term x, Term) {
                 return Terms{f.constant(DType::kBool, 1), x};
               }),
      // What rank `from` sends to this one, of x's element type. A rank alone has x in all elements.
      function("Receive <from> (x, shape, after) => (y)", [](Term x, Term shape, Term) { return expand(x, shape); }),
  };
}

}  // namespace onnx_train
