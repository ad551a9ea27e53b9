pub const RULES: &[super::Rule] = &[];
