// What the module's init function calls, in this order. Explicit calls rather than static initialisers: the shim is
// linked from an archive, which would drop objects that nothing refers to.
#pragma once

namespace tpu {
void register_guard();
void register_hooks();
void register_structural();  // allocations, views, copies
void register_forms();       // the op table and all that follows from it
void register_sparse();      // what holds the parts of sparse tensors together
void register_fallback();    // everything else, on the CPU
void register_shadow();      // shape rules
void register_autocast();
}  // namespace tpu
