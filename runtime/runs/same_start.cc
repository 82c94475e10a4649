#include "runtime/runs/same_start.h"

#include "kernels/collectives.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/fingerprint.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {

void expect_same_start(const Session& session, const Trainer& trainer) {
  if (session.ranks() == 1) return;
  // Of states that several ranks have: all, or in pipelines those of one stage.
  const auto stages = static_cast<size_t>(session.ranks() / session.pipelines());
  std::string states;  // one after the other: each is a copy
  for (const std::string& name : session.state_names()) {
    const bool is_here = session.is_pipeline() ? session.has_state(name) : !session.is_sharded(name);
    if (is_here) states += fingerprint({{name, session.contents(name)}});
  }
  const SessionOptions& options = session.options();
  std::string settings = concat("zero=", static_cast<int>(options.sharding), " sync=", options.sync_batch_norm,
                                " pipeline=", options.stages, "\n");
  for (const auto& [key, value] : trainer.position().settings) settings += concat(key, "=", value, "\n");
  // Each rank's with those of the first of every `groups` ranks.
  const auto expect_same = [&](const std::string& own, const char* what, size_t groups) {
    const std::vector<uint32_t> all = session.collectives()->gather("the start", text_hash(own));
    for (size_t r = groups; r < all.size(); ++r) {
      if (all[r] != all[r % groups])
        fail_as(ErrorCode::kRanksDiffer, "rank ", r, " has other ", what, " than rank ", r % groups,
                ": give all ranks the same command, and the same files");
    }
  };
  const TrainingPosition& position = trainer.position();
  expect_same(settings, "settings or data", 1);
  expect_same(concat(position.epoch, " ", position.step, " ", position.sample), "steps behind it", 1);
  expect_same(states, "weights", stages);
}

}  // namespace onnx_train
