//! Tests that need another program which not every Linux machine has. Where it is missing they say so and are skipped.

mod containers;
