// What `fit` prints before the first step: model, data, parameters, memory by category, schedule.
#pragma once

#include <string>

#include "runtime/training/run_memory.h"
#include "runtime/training/trainer.h"

namespace onnx_train {

// Makes the plan of the training step for full batches, whose arena is part of the memory.
std::string training_banner(Session* session, const Dataset& training, const Dataset* evaluation,
                            const Trainer& trainer, MemoryRows* memory);

}  // namespace onnx_train
