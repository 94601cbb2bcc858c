"""What tests of the platform, and of brokers written for it, may use."""
