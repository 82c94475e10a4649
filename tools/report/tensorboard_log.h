// The metrics of a run for TensorBoard: RUN/tensorboard/events.out.tfevents.*, a file of TFRecords, each an Event
// (events.proto) between its length and checksums. A run that is resumed adds a file, whose first event takes back the
// steps that are done again. The owner uses it from one thread. A failure to write is an Error of the call.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_passes/io/file.h"
#include "runtime/runs/metrics_log.h"

namespace onnx_train {

namespace tensorboard {
class Event;
}

// CRC-32C (Castagnoli) of the bytes, and as TFRecords store it: rotated and shifted.
uint32_t crc32c(const void* data, size_t bytes);
uint32_t masked_crc32c(const void* data, size_t bytes);

class TensorBoardLog : public MetricsSink {
 public:
  // Goes on after `step` steps; 0 removes the files of an earlier run.
  TensorBoardLog(const std::string& folder, int64_t step);
  ~TensorBoardLog() override;

  void add(const StepReport& report) override;
  void add(const EvaluationReport& report) override;

 private:
  void write(tensorboard::Event* event, int64_t step);

  std::string path_;
  File file_;
};

}  // namespace onnx_train
