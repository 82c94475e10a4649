#include "runtime/distribution/same_start.h"

#include <algorithm>

#include "kernels/collectives.h"
#include "onnx_passes/ir/error.h"
#include "runtime/distribution/text_hash.h"
#include "runtime/training/fingerprint.h"

namespace onnx_train {

void expect_same_start(const Session& session, const Trainer& trainer, const std::string& other) {
  if (session.ranks() == 1) return;
  std::string weights;  // one after the other: each is a copy
  for (const std::string& name : session.state_names()) {
    if (!session.is_sharded(name)) weights += fingerprint({{name, session.contents(name)}});
  }
  std::string settings = other + "\n";
  for (const auto& [key, value] : trainer.position().settings) settings += concat(key, "=", value, "\n");
  const auto expect_same = [&](const std::string& own, const char* what) {
    const std::vector<uint32_t> all = session.collectives()->gather("the start", text_hash(own));
    const auto differs = std::find_if(all.begin(), all.end(), [&](uint32_t each) { return each != all[0]; });
    if (differs != all.end())
      fail("rank ", differs - all.begin(), " has other ", what,
           " than rank 0: give all ranks the same command, and the same files");
  };
  expect_same(settings, "settings or data");
  expect_same(weights, "weights");
}

}  // namespace onnx_train
