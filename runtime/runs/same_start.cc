#include "runtime/runs/same_start.h"

#include "kernels/collectives.h"
#include "onnx_passes/ir/error.h"
#include "runtime/support/fingerprint.h"
#include "runtime/support/text_hash.h"

namespace onnx_train {

void expect_same_start(const Session& session, const Trainer& trainer) {
  const Topology& topology = session.topology();
  if (topology.ranks() == 1) return;
  // Of states that several ranks have: all, or in pipelines those of one stage.
  const TopologyOptions& options = topology.options();
  std::string states;  // one after the other: each is a copy
  for (const std::string& name : session.state_names()) {
    const bool is_here = topology.is_pipeline() ? topology.has_state(name) : !topology.is_sharded(name);
    if (is_here) states += fingerprint({{name, session.contents(name)}});
  }
  std::string settings =
      concat("zero=", static_cast<int>(options.sharding), " sync=", options.sync_batch_norm,
             " pipeline=", options.stages, " tensor=", options.tensor, " shards=", trainer.options().checkpoint_shards,
             " base=", trainer.options().checkpoint_base.when, "\n");
  for (const auto& [key, value] : trainer.position().settings) settings += concat(key, "=", value, "\n");
  // Each rank's with those of the first of every `groups` ranks.
  const auto expect_same = [&](const std::string& own, const char* what, size_t groups) {
    const std::vector<uint32_t> all = topology.collectives()->gather("the start", text_hash(own));
    for (size_t r = groups; r < all.size(); ++r) {
      if (all[r] != all[r % groups])
        fail_as(ErrorCode::kRanksDiffer, "rank ", r, " has other ", what, " than rank ", r % groups,
                ": give all ranks the same command, and the same files");
    }
  };
  const TrainingPosition& position = trainer.position();
  expect_same(settings, "settings or data", 1);
  expect_same(concat(position.epoch, " ", position.step, " ", position.sample), "steps behind it", 1);
  expect_same(states, "weights", static_cast<size_t>(options.stages));
}

}  // namespace onnx_train
