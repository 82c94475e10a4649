// A page that shows what each pass of some pipelines changes in the text of a model: HTML without anything from
// outside. It serves those who change passes. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/model/pass.h"
#include "tools/opt/pass_registry.h"

namespace onnx_train {

class PassPage {
 public:
  // As PipelineOptions::observe, of each pipeline in turn.
  void observe(const PassTiming* pass, const Model& model);

  size_t passes() const { return sections_.size(); }
  size_t changes() const;
  // The page. `known` says which pipeline a pass belongs to, and what it does.
  std::string html(const std::string& title, const std::vector<RegisteredPass>& known) const;

 private:
  struct Section {
    std::string pass;
    size_t nodes_before, nodes_after, added, removed;
    std::string lines;  // HTML; "" where nothing changes
  };

  std::string text_;  // of the model before the next pass
  std::vector<Section> sections_;
};

// Runs the passes of all pipelines on the model of a file, up to the plan of an entry point, which is not run: those of
// import, adapt and training for a forward model; `observe` sees each. Sizes that are open are 4 for the batch, else 8.
void run_all_pipelines(const std::string& path, PassSettings settings,
                       const std::function<void(const PassTiming*, const Model&)>& observe);

}  // namespace onnx_train
