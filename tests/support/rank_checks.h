// What holds for ranks on any transport: each function is run by all ranks of one, on a thread or a process each. It
// expects with Google Test, and leaves the ranks as `leave` does where it says so.
#pragma once

#include "kernels/collectives.h"

namespace onnx_train {

// Exchanges of other sizes between each two ranks, three times, and a gather.
void expect_exchanges(Collectives* ranks);
// Messages of `bytes` that are sent before any is received, and are received in another order.
void expect_messages(Collectives* ranks, size_t bytes);
// Rank 0 sends 3 bytes to rank 1, which wants 4; rank 2 leaves, for which rank 0 waits. Ends the ranks.
void expect_a_reason_for_no_message(Collectives* ranks);
// Rank 1 leaves, and the others say so ever after. Ends the ranks.
void expect_a_reason_for_leaving(Collectives* ranks);
// Each calls its exchange by its number. Ends the ranks.
void expect_an_error_at_different_places(Collectives* ranks);

}  // namespace onnx_train
