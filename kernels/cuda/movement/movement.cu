// Operators that rearrange the elements of their inputs (kernels/geometry/indexing/boxes.h).
#include "kernels/geometry/indexing/boxes.h"

#include <cstdlib>
#include <map>

#include "kernels/cuda/movement/row_units.h"
#include "kernels/cuda/support/indexing.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/tensor_list.h"

namespace onnx_train::cuda {
namespace {

template <typename T>
__global__ void copy_box(int64_t n, Indexing<2> indexing, const T* from, T* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offsets[2] = {};
  indexing.add_offsets(i, offsets);
  to[offsets[1]] = from[offsets[0]];
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// Transposes the matrices of a batch, from[c][r] to to[r][c], through a tile of shared memory: both sides are accessed
// in rows. Block (x, y, z): tile of columns, tile of rows, matrix.
template <typename T>
__global__ void transpose_box(int64_t rows, int64_t columns, int64_t from_stride, int64_t to_stride,
                              Indexing<2> matrices, const T* from, T* to) {
  GPU_SHARED(tile, T[kTile][kTile + 1]);
  int64_t offsets[2] = {};
  matrices.add_offsets(blockIdx.z, offsets);
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
    const int64_t c = first_column + y, r = first_row + x;
    if (c < columns && r < rows) tile[y][x] = from[offsets[0] + c * from_stride + r];
  }
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileRows) {
    const int64_t c = first_column + x, r = first_row + y;
    if (c < columns && r < rows) to[offsets[1] + r * to_stride + c] = tile[x][y];
  }
}

// A copy of a box of elements of `bytes` bytes: the operator's, or several of them that are moved together.
struct Box {
  std::vector<CopyAxis> axes;  // merged, the outermost first
  int64_t from = 0, to = 0;
  size_t bytes = 1;

  int64_t size() const {
    int64_t n = 1;
    for (const CopyAxis& axis : axes) n *= axis.size;
    return n;
  }
};

// Moves up to 16 bytes at a time if rows are contiguous and everything is aligned.
Box widened(Box box) {
  if (box.axes.empty() || box.axes.back().from != 1 || box.axes.back().to != 1) return box;
  while (box.bytes < sizeof(uint4)) {
    int64_t odd = box.from | box.to | box.axes.back().size;
    for (size_t k = 0; k + 1 < box.axes.size(); ++k) odd |= box.axes[k].from | box.axes[k].to;
    if (odd % 2 != 0) break;
    box.from /= 2;
    box.to /= 2;
    box.axes.back().size /= 2;
    for (size_t k = 0; k + 1 < box.axes.size(); ++k) {
      box.axes[k].from /= 2;
      box.axes[k].to /= 2;
    }
    box.bytes *= 2;
  }
  return box;
}

using RunBox = std::function<void(const Launch&, const char* from, char* to)>;

std::vector<IndexedAxis<2>> indexed(const std::vector<CopyAxis>& axes) {
  std::vector<IndexedAxis<2>> all;
  for (const CopyAxis& axis : axes) all.push_back({axis.size, {axis.from, axis.to}});
  return all;
}

template <typename T>
RunBox copy_as(const Box& box) {
  const int64_t n = box.size();
  return [n, indexing = Indexing<2>(indexed(box.axes))](const Launch& launch, const char* from, char* to) {
    enqueue_each(launch, "copy_box", copy_box<T>, n, indexing, reinterpret_cast<const T*>(from),
                 reinterpret_cast<T*>(to));
  };
}

// Returns the axis that is contiguous in `from` if the innermost axis is contiguous only in `to` and both are long.
size_t transposed_axis(const Box& box) {
  const size_t none = box.axes.size();
  if (box.axes.size() < 2 || box.axes.back().to != 1 || box.axes.back().from < kTile ||
      box.axes.back().size < kTile / 2)
    return none;
  for (size_t k = 0; k + 1 < box.axes.size(); ++k) {
    const int64_t matrices = box.size() / box.axes[k].size / box.axes.back().size;
    if (box.axes[k].from == 1 && box.axes[k].size >= kTile / 2 && box.axes[k].to > 0 && matrices < 65536 &&
        box.axes[k].size < int64_t{kTile} * 65536) {
      return k;
    }
  }
  return none;
}

template <typename T>
RunBox transpose_as(const Box& box, size_t axis) {
  const CopyAxis rows = box.axes[axis], columns = box.axes.back();
  std::vector<CopyAxis> outer = box.axes;
  outer.pop_back();
  outer.erase(outer.begin() + static_cast<std::ptrdiff_t>(axis));
  const int64_t matrices = box.size() / rows.size / columns.size;
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const dim3 grid(tiles(columns.size), tiles(rows.size), static_cast<unsigned>(matrices));
  return [=, indexing = Indexing<2>(indexed(outer))](const Launch& launch, const char* from, char* to) {
    enqueue(launch, "transpose_box", transpose_box<T>, grid, dim3(kTile, kTileRows), 0, rows.size, columns.size,
            columns.from, rows.to, indexing, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to));
  };
}

template <typename T>
RunBox run_as(const Box& box) {
  const size_t axis = transposed_axis(box);
  return axis < box.axes.size() ? transpose_as<T>(box, axis) : copy_as<T>(box);
}

RunBox run_box(const Box& box) {
  RunBox run;
  dispatch_unit(static_cast<int64_t>(box.bytes), [&]<typename T>(T) { run = run_as<T>(box); });
  return run;
}

// ---- Rows: boxes of up to two axes with the inner one contiguous, such as the parts of Concat and Split. One launch
// copies the boxes of a node, because most nodes have many small ones.

constexpr int kMostRows = 56;  // boxes per launch, passed as kernel parameters

struct Rows {
  const void* from;
  void* to;
  int64_t size, first_block;  // size and strides in units
  Divider row;
  int64_t from_stride, to_stride;
};

using ManyRows = TensorList<Rows, kMostRows>;
static_assert(sizeof(ManyRows) <= 4096 - 256);  // kernel parameters have at most 4096 bytes

template <typename T>
__global__ void copy_many_rows(ManyRows boxes) {
  int64_t begin = 0;
  const Rows& box = boxes.of_block(&begin);
  const int64_t end = begin + kOfBlock < box.size ? begin + kOfBlock : box.size;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const int64_t row = box.row.quotient(i), unit = i - row * box.row.divisor();
    static_cast<T*>(box.to)[row * box.to_stride + unit] = static_cast<const T*>(box.from)[row * box.from_stride + unit];
  }
}

bool is_rows(const Box& box) {
  return box.axes.size() <= 2 && (box.axes.empty() || (box.axes.back().from == 1 && box.axes.back().to == 1));
}

Rows rows_of(const Box& box) {
  const bool has_rows = box.axes.size() == 2;
  return {nullptr,
          nullptr,
          box.size(),
          0,
          Divider(box.axes.empty() ? 1 : box.axes.back().size),
          has_rows ? box.axes[0].from : 0,
          has_rows ? box.axes[0].to : 0};
}

void run_rows(const Launch& launch, size_t bytes, const ManyRows& boxes) {
  dispatch_unit(static_cast<int64_t>(bytes), [&]<typename T>(T) {
    enqueue(launch, "copy_many_rows", copy_many_rows<T>, static_cast<unsigned>(boxes.blocks), kThreads, 0, boxes);
  });
}

// ---- A node

// The operands of a box, and the offsets of its first element in them.
struct Place {
  int input, output;
  int64_t from, to;  // in bytes

  // Returns false if the output is absent, or if the memory plan has placed the input there already.
  bool find(const Launch& launch, const char** source, char** destination) const {
    if (!launch.outputs[output]) return false;
    *source = launch.in<char>(input) + from;
    *destination = launch.out<char>(output) + to;
    return *source != *destination;
  }
};

template <typename T>
struct Placed {
  T box;
  Place place;
};

void run_many_rows(const Launch& launch, size_t bytes, const std::vector<Placed<Rows>>& all) {
  ManyRows boxes = {};
  const auto flush = [&] {
    if (boxes.count > 0) run_rows(launch, bytes, boxes);
    boxes = {};
  };
  for (const auto& [rows, place] : all) {
    const char* from = nullptr;
    char* to = nullptr;
    if (!place.find(launch, &from, &to)) continue;
    if (boxes.count == kMostRows) flush();
    Rows box = rows;
    box.from = from;
    box.to = to;
    boxes.add(box);
  }
  flush();
}

Prepared prepare_movement(const NodeSpec& spec, const Movement& movement) {
  const size_t bytes = size_of(spec.in_type(0));
  std::vector<Placed<RunBox>> boxes;
  std::map<size_t, std::vector<Placed<Rows>>> rows;  // by bytes of a unit
  for (const BoxCopy& copy : movement.copies) {
    const Box box = widened({merge_axes(copy.axes), copy.from, copy.to, bytes});
    if (box.size() == 0) continue;
    const auto unit = static_cast<int64_t>(box.bytes);
    const Place place{copy.input, copy.output, box.from * unit, box.to * unit};
    if (movement.copies.size() > 1 && is_rows(box)) {
      rows[box.bytes].push_back({rows_of(box), place});
    } else {
      boxes.push_back({run_box(box), place});
    }
  }
  const size_t zeros = movement.zeros_first ? static_cast<size_t>(spec.out_size()) * bytes : 0;
  Prepared prepared;
  prepared.run = [boxes = std::move(boxes), rows = std::move(rows), zeros](const Launch& launch) {
    set_bytes(launch, launch.outputs[0], 0, zeros);
    for (const auto& [run, place] : boxes) {
      const char* from = nullptr;
      char* to = nullptr;
      if (place.find(launch, &from, &to)) run(launch, from, to);
    }
    for (const auto& [unit, all] : rows) run_many_rows(launch, unit, all);
  };
  return prepared;
}

}  // namespace

std::vector<Kernel> movement_kernels() {
  std::vector<Kernel> kernels;
  for (const MovementRow& row : movement_rows()) {
    kernels.push_back(
        {row.op, row.supports,
         [describe = row.describe](const NodeSpec& spec) { return prepare_movement(spec, describe(spec)); },
         row.domain});
  }
  return kernels;
}

}  // namespace onnx_train::cuda
