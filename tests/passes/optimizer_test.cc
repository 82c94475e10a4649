#include "onnx_passes/training/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/training/accumulate.h"
#include "onnx_passes/training/backward.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "onnx_passes/training/training_mode.h"
#include "tests/support/golden.h"

namespace onnx_train {
namespace {

using testing::HasSubstr;

std::vector<Pass> passes(const std::string& optimizer_text) {
  BuildOptions options;
  options.optimizer = optimizer_text;
  options.clip_norm = 2;
  options.loss = "mse";
  return {training_mode(options), loss(options), gradients(options), optimizer(options)};
}

TEST(Optimizer, AccumulationCutsTheStepInTwo) {
  BuildOptions options;
  options.optimizer = "sgd";
  options.loss = "mse";
  expect_golden("accumulate",
                {training_mode(options), loss(options), gradients(options), accumulate(options), optimizer(options)});
}

std::string message(const std::string& text) {
  try {
    parse_optimizer(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Optimizer, AdamWLeavesBiasesUndecayed) { expect_golden("optimizer_adamw", passes("adamw")); }

TEST(Optimizer, SgdWithMomentum) { expect_golden("optimizer_sgd", passes("sgd(momentum=0.9, nesterov=true)")); }

TEST(Optimizer, ReadsWhatItWrites) {
  EXPECT_EQ(to_string(parse_optimizer("sgd")), "sgd(lr=0.01, momentum=0, dampening=0, weight_decay=0)");
  EXPECT_EQ(to_string(parse_optimizer("adam")), "adam(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0)");
  for (const char* text : {"sgd(lr=0.5, momentum=0.9, dampening=0, nesterov=true, weight_decay=0.0001)",
                           "adamw(lr=3e-05, betas=(0.8, 0.95), eps=1e-06, weight_decay=0.1)"}) {
    EXPECT_EQ(to_string(parse_optimizer(text)), text);
  }
  EXPECT_EQ(to_string(parse_optimizer(" adamw ( beta2 = 0.95 )")),
            "adamw(lr=0.001, betas=(0.9, 0.95), eps=1e-08, weight_decay=0.01)");
}

TEST(Optimizer, MisspeltNamesNameTheOneThatIsMeant) {
  const auto message = [](const std::string& text) {
    try {
      parse_optimizer(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("adamW"), testing::HasSubstr("there is sgd, adam, adamw; did you mean 'adamw'?"));
  EXPECT_THAT(message("adamw(weigth_decay=0)"), testing::HasSubstr("did you mean 'weight_decay'?"));
}

TEST(Optimizer, MistakesPointAtTheColumn) {
  EXPECT_EQ(message("lion"), "--optimizer \"lion\", column 1: there is no optimizer 'lion'; there is sgd, adam, adamw");
  EXPECT_THAT(
      message("sgd(momentun=0.9)"),
      HasSubstr("column 5: sgd has no option 'momentun'; it has nesterov, lr, momentum, dampening, weight_decay; "
                "did you mean 'momentum'?"));
  EXPECT_THAT(message("adam(betas=0.9)"), HasSubstr("column 12: betas are two numbers"));
  EXPECT_THAT(message("adam(beta1=1)"), HasSubstr("column 12: 'beta1' is 1; it must be in [0, 1)"));
  EXPECT_THAT(message("adamw(lr=-1)"), HasSubstr("'lr' is -1; it must be 0 or more"));
  EXPECT_THAT(message("sgd(nesterov=true)"), HasSubstr("nesterov needs a momentum"));
  EXPECT_THAT(message("sgd(0.9)"), HasSubstr("column 5: expected a name or an option, found '0'"));
  EXPECT_THAT(message("sgd(momentum)"), HasSubstr("'momentum' has no value; write momentum=..."));
  EXPECT_THAT(message("sgd(momentum=fast)"), HasSubstr("'momentum' is a number"));
  EXPECT_THAT(message("sgd adam"), HasSubstr("column 5: expected the end"));
}

}  // namespace
}  // namespace onnx_train
