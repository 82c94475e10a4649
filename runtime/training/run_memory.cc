#include "runtime/training/run_memory.h"

#include "kernels/host.h"
#include "onnx_passes/io/mapped_file.h"
#include "runtime/data/gather_ahead.h"

namespace onnx_train {
namespace {

constexpr double kOfProcess = 12 * 0x1p20, kOfThread = 0x1p19, kOfNode = 80 * 0x1p10;

}  // namespace

double bytes_of_first_steps(const Model& model) {
  return kOfProcess + kOfThread * num_threads() + kOfNode * static_cast<double>(model.graph->num_nodes());
}

std::map<std::string, Shape> batch_shapes(const Dataset& data, int64_t samples) {
  std::map<std::string, Shape> shapes;
  for (const Dataset::Array& array : data.arrays()) shapes.emplace(array.name, array.batch_shape(samples));
  return shapes;
}

double bytes_of_batches(const Dataset& data, int64_t samples) {
  double total = 0;
  for (const Dataset::Array& array : data.arrays()) {
    const int64_t rows = array.per_sample ? samples : 1;
    total += static_cast<double>(rows * num_elements(array.row)) * static_cast<double>(size_of(array.dtype));
  }
  return total * static_cast<double>(1 + GatherAhead::batches_ahead(data));
}

void DataBytes::add(const Dataset& data) {
  for (const Dataset::Array& array : data.arrays()) {
    const size_t bytes = array.rows.memory();
    all += static_cast<double>(bytes);
    if (!array.rows.is_quick()) {
      made += static_cast<double>(bytes);
    } else if (array.rows.reader() || is_mapped(array.rows.stored().data(), bytes)) {
      mapped += static_cast<double>(bytes);
    }
  }
}

}  // namespace onnx_train
