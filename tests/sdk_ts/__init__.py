"""The TypeScript client, as its package has it, in Node.js and in a browser."""
