// The compiler takes functions without a body, as the runtime's are here, only in a package with assembly.
