/// What a guest may use. Every limit counts something that is the same on every
/// machine, so a run that passes on one passes on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fuel to instantiate and configure one model. One unit is about one
    /// WebAssembly instruction; 500 million take around a second.
    pub fuel_per_configure: u64,
    /// Fuel of one pricing call, however few steps it has.
    pub fuel_per_call: u64,
    /// Fuel that each step of a pricing call adds. A roofline uses some hundred
    /// units a step.
    pub fuel_per_step: u64,
    /// Steps of one pricing call; a longer batch is split over several calls.
    /// Bounds the list that the guest has to take into its memory.
    pub steps_per_call: usize,
    /// Linear memory of one instance, in bytes. An instance serves one engine.
    pub memory_bytes: usize,
    /// Elements of the tables of one instance.
    pub table_elements: usize,
    /// Core instances, memories and tables, each, inside one component.
    pub core_items: usize,
    /// Bytes that one answer may make the host copy: results and error texts.
    pub answer_bytes: usize,
    /// Size of a component file, in bytes, checked before it is compiled.
    pub component_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel_per_configure: 500_000_000,
            fuel_per_call: 50_000_000,
            fuel_per_step: 1_000_000,
            steps_per_call: 256,
            memory_bytes: 64 << 20,
            table_elements: 100_000,
            core_items: 16,
            answer_bytes: 64 << 10,
            component_bytes: 64 << 20,
        }
    }
}

impl Limits {
    /// Fuel of a pricing call of `steps` steps.
    pub(crate) fn price_fuel(&self, steps: usize) -> u64 {
        self.fuel_per_call.saturating_add(self.fuel_per_step.saturating_mul(steps as u64))
    }
}
