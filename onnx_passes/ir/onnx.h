// ONNX's messages, complete. For .cc files only: see protobuf.h.
#pragma once

#include <onnx/onnx_pb.h>

#include "onnx_passes/ir/protobuf.h"
