//! Orders that the scheduler refused: told, and tried again later, or at once when they are others.

use commensal_core::drift::{FIRST_BACK_OFF_MS, LONGEST_BACK_OFF_MS};
use commensal_core::scheduler::Orders;

/// What it refused last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedOrders {
    orders: Orders,
    back_off_ms: u64,
    again_from_ms: u64,
    /// Why, with what was ordered.
    pub(super) reason: String,
}

impl RefusedOrders {
    /// Refused now; after what was refused `before` it waits for longer.
    pub(super) fn again(
        before: Option<RefusedOrders>,
        now_ms: u64,
        orders: &Orders,
        reason: String,
    ) -> RefusedOrders {
        let same = before.filter(|before| before.orders == *orders);
        let back_off_ms = match same {
            Some(before) => before.back_off_ms.saturating_mul(2).min(LONGEST_BACK_OFF_MS),
            None => FIRST_BACK_OFF_MS,
        };
        let again_from_ms = now_ms.saturating_add(back_off_ms);
        RefusedOrders { orders: orders.clone(), back_off_ms, again_from_ms, reason }
    }

    /// Whether these may be tried now.
    pub(super) fn may_try(&self, now_ms: u64, orders: &Orders) -> bool {
        self.orders != *orders || now_ms >= self.again_from_ms
    }
}
