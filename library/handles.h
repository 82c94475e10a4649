// What is behind the handles of the C interface.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "onnx_passes/ir/message.h"
#include "onnx_train/onnx_train.h"
#include "runtime/session.h"

// A model as its file has it; each call that needs the graph makes one.
struct onnx_train_model {
  onnx_train::ModelMessage message;
};

struct onnx_train_session {
  explicit onnx_train_session(onnx_train::Model model, const onnx_train::SessionOptions& options)
      : session(std::move(model), options) {
    for (const std::string& name : session.state().names()) state_names.push_back(name.c_str());
  }

  onnx_train::Session session;
  std::vector<const char*> state_names;
  std::vector<onnx_train_tensor> outputs;  // of the last run
  std::atomic<bool> busy{false};
};
