// Operators that rearrange the elements of their inputs: strided copies that kernels/geometry/indexing/boxes.h
// describes.
#include <cstring>

#include "kernels/cpu/movement/strided_copy.h"
#include "kernels/cpu/support/kernels.h"
#include "kernels/cpu/support/parallel.h"

namespace onnx_train::cpu {
namespace {

// A strided copy from input `input` to output `output`; offsets in bytes.
struct Move {
  StridedCopy copy;
  int input;
  int64_t from;
  int output;
  int64_t to;
};

void fill_zeros(char* out, int64_t bytes) {
  parallel_for(bytes, 4 * kElementGrain,
               [=](int64_t begin, int64_t end) { std::memset(out + begin, 0, static_cast<size_t>(end - begin)); });
}

Prepared prepare_movement(const NodeSpec& spec, Movement movement) {
  const auto bytes = static_cast<int64_t>(size_of(spec.in_type(0)));
  std::vector<Move> moves;
  for (BoxCopy& box : movement.copies) {
    moves.push_back({StridedCopy(std::move(box.axes), static_cast<size_t>(bytes)), box.input, box.from * bytes,
                     box.output, box.to * bytes});
  }
  const int64_t zeros = movement.zeros_first ? spec.out_size() * bytes : 0;
  Prepared prepared;
  prepared.run = [moves = std::move(moves), zeros](const Launch& launch) {
    if (zeros > 0) fill_zeros(launch.out<char>(), zeros);
    for (const Move& m : moves) {
      if (!launch.outputs[m.output]) continue;
      const char* from = launch.in<char>(m.input) + m.from;
      char* to = launch.out<char>(m.output) + m.to;
      if (from != to) m.copy.run(from, to);  // equal if the memory plan has placed the input there already
    }
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> shape_kernels() {
  std::vector<Kernel> kernels;
  for (const MovementRow& row : movement_rows()) {
    const auto prepare = [describe = row.describe](const NodeSpec& spec) {
      return prepare_movement(spec, describe(spec));
    };
    kernels.push_back({row.op, row.supports, prepare, row.domain});
  }
  return kernels;
}

}  // namespace onnx_train::cpu
