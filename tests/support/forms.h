// Runs a test with each form between which the nodes of a plan choose (kernels/choices/fastest.h).
#pragma once

#include <string>

#include "onnx_passes/ir/error.h"
#include "runtime/plan/plan.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train {

// Returns the forms that a plan's nodes have, a line each.
inline std::string forms_of(const Plan& plan) {
  std::string forms;
  for (const Prepared& prepared : plan.prepared()) forms += prepared.form.empty() ? "" : prepared.form + "\n";
  return forms;
}

// Calls run() with the first form of each node, the second one, and so on, until forms repeat; run returns forms_of its
// plan. A node with fewer forms than others has its last one. Returns the number of calls with new forms.
template <typename F>
int for_each_form(const F& run) {
  std::string before;
  for (int form = 0;; ++form) {
    const ScopedVariable demanded("ONNX_TRAIN_TIMED_CHOICES", concat("form=", form));
    const std::string forms = run();
    if (forms == before) return form;
    before = forms;
  }
}

}  // namespace onnx_train
