#include "tools/run_report/run_files.h"

#include "runtime/runs/metrics_log.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void run_files(Input input) {
  for (const char* name :
       {"metrics.csv", "metrics.jsonl", "epochs.jsonl", "evaluation.json", "profile.json", "options.json"})
    file_of(input, name);
  try_to([&] { read_run(folder()); });
  try_to([&] { MetricsLog(folder(), 5); });
}

}  // namespace onnx_train::fuzz
